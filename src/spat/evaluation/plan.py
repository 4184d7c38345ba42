"""From names such as `pgd-20` to the attacks that will run.

A number after an attack's name is its steps, or its queries where it has no steps. Where the model
has a cosine head, an attack that climbs the cross entropy runs twice: on the bare cosines, as the
SPAT authors' code does, and with the logits multiplied by the training scale, which is the stronger
one. Attacks on differences of logits do not depend on the scale.

Unless the evaluation is exact, searches take the short cuts that may miss a break but never invent
one; the settings of an attack, which the Record tells, say which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from spat import catalog
from spat.attacks._base import Attack
from spat.attacks._fab import BoundarySearch
from spat.attacks.aa import AA
from spat.errors import UserError
from spat.threat import Budget, Norm

PATIENCE = 3.0  # of AutoAttack: see spat.attacks._patience for what it was measured to miss


@dataclass(frozen=True)
class Planned:
    """An attack under the name its results go by."""

    label: str
    attack: Attack


def plan_attacks(
    attacks: str | Iterable[str],
    *,
    eps: Budget,
    norm: Norm = "linf",
    scale: float = 1.0,
    exact: bool = False,
) -> list[Planned]:
    """The attacks to run, in order; `clean` is always measured and needs no attack."""
    names = attacks.replace(",", " ").split() if isinstance(attacks, str) else list(attacks)
    wanted = [name for name in dict.fromkeys(names) if name != "clean"]
    planned: list[Planned] = []
    for name in wanted:
        attack = attack_by_name(name, eps=eps, norm=norm)
        attack = attack if exact else hastened(attack)
        climbs_ce = getattr(attack, "loss", None) == "ce"
        if climbs_ce and scale != 1.0:
            scaled = replace(attack, loss_scale=scale)  # type: ignore[call-arg]
            planned += [
                Planned(f"{name} scale 1", attack),
                Planned(f"{name} scale {scale:g}", scaled),
            ]
        else:
            planned.append(Planned(name, attack))
    return planned


def hastened(attack: Attack) -> Attack:
    """The attack with the short cuts it has."""
    if isinstance(attack, AA):
        return replace(attack, frugal=True, patience=PATIENCE)
    return replace(attack, frugal=True) if isinstance(attack, BoundarySearch) else attack


def attack_by_name(name: str, **settings: Any) -> Attack:
    """`pgd`, or `pgd-20` for twenty steps; settings are the attack's own."""
    match = re.fullmatch(r"(.+?)-(\d+)", name)
    if match and match[1].replace("_", "-") in catalog.names("attack"):
        own = [setting.name for setting in catalog.settings("attack", match[1])]
        counted = [name for name in ("steps", "queries") if name in own]
        if not counted:
            raise UserError(f"{match[1]} has no number of steps; write {match[1]!r}.")
        settings = {counted[0]: int(match[2]), **settings}
        name = match[1]
    built = catalog.build("attack", name, **settings)
    assert isinstance(built, Attack)
    return built
