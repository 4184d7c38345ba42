"""The doubts that an evaluation raises by itself: what its outcomes say, and what it did not ask.

No attack is run: outcomes are compared, settings read, and a few forward passes made, so that
every evaluation can afford it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor, nn

from spat import catalog
from spat.attacks._base import Attack
from spat.attacks.aa import AA
from spat.attacks.apgd_ce import ApgdCE
from spat.attacks.mim import MIM
from spat.attacks.pgd import PGD
from spat.attacks.square import Square
from spat.doubts._base import gap_level
from spat.doubts._run import under_audit
from spat.doubts.reach import SLACK, reach
from spat.evaluation import Planned
from spat.findings import LEVELS, Finding
from spat.models import head_scale
from spat.records import Outcomes

CHEAP = ("gradient", "neighbours", "optimisation", "probabilities", "randomness")
FEW_STEPS = 10  # fewer are a look, not an evaluation


def flags(
    outcomes: Outcomes, planned: Sequence[Planned], model: nn.Module, x: Tensor, y: Tensor
) -> tuple[str, ...]:
    """Every doubt about an evaluation in one line each, red first: the `doubts` of a Record.

    x, y: a few of the images, for the doubts that ask the model
    """
    findings = [*from_outcomes(outcomes, planned, head_scale(model))]
    findings += from_model(model, x, y, planned)
    doubtful = [one for one in findings if one.level != "green"]
    return tuple(one.flag for one in sorted(doubtful, key=lambda one: -LEVELS.index(one.level)))


def from_outcomes(
    outcomes: Outcomes, planned: Sequence[Planned], scale: float = 1.0
) -> list[Finding]:
    """What the outcomes and the list of attacks tell, green findings included."""
    attacks = {one.label: one.attack for one in planned}
    if not attacks:
        return []
    asked = [
        _beaten(outcomes, attacks, "autoattack", _is_pgd, _is_autoattack),
        _beaten(outcomes, attacks, "square", _climbs, _is_square),
        _beaten(outcomes, attacks, "noise", _climbs, _is_noise),
        _reach(attacks),
        _steps(attacks),
        _scale(attacks, scale),
    ]
    return [one for one in asked if one is not None]


def from_model(model: nn.Module, x: Tensor, y: Tensor, planned: Sequence[Planned]) -> list[Finding]:
    """The findings of the doubts that cost a few forward passes; the model is borrowed."""
    climbing = [one.attack for one in planned if _is_pgd(one.attack)]
    attack = climbing[-1] if climbing else PGD()
    with under_audit(model, x, y, attack) as subject:
        if not len(subject):
            return []
        asked = (catalog.build("doubt", name)(subject) for name in CHEAP)
        return [one for one in asked if one is not None]


Kind = Callable[[Attack], bool]
TOLD = {
    "autoattack": ("AutoAttack", "PGD", "report AutoAttack's number, not PGD's."),
    "square": ("Square", "the attacks with gradients", "gradients are masked: look for the cause."),
    "noise": ("random noise", "the attacks with gradients", "the attacks are blind."),
}


def _beaten(
    outcomes: Outcomes, attacks: dict[str, Attack], name: str, weak: Kind, strong: Kind
) -> Finding | None:
    """Attacks of one kind break what none of the other kind does."""
    judged = [label for label, attack in attacks.items() if weak(attack)]
    judges = [label for label, attack in attacks.items() if strong(attack)]
    if not judged or not judges:
        return None
    held = np.logical_and.reduce([outcomes.held(label) for label in judged])
    left = held & np.logical_and.reduce([outcomes.held(label) for label in judges])
    k, n = int(held.sum() - left.sum()), len(outcomes)
    stronger, weaker, advice = TOLD[name]
    reason = (
        f"{stronger} breaks {k} of {n} images ({100 * k / n:.1f} points) that {weaker} does not."
    )
    return Finding(name, gap_level(k, n), reason, advice, {"gap": k / n})


def _reach(attacks: dict[str, Attack]) -> Finding | None:
    ways = [way for way in map(reach, attacks.values()) if way is not None]
    if len(ways) < len(attacks) or max(ways) >= 2 - SLACK:
        return None  # one of them chooses its own steps, or crosses the ball
    reason = (
        f"no attack's steps x step size exceeds {max(ways):.3g} eps; to cross the ball takes 2."
    )
    return Finding("reach", "amber", reason, "take more or longer steps.", {"reach": max(ways)})


def _steps(attacks: dict[str, Attack]) -> Finding | None:
    steps = [getattr(attack, "steps", FEW_STEPS) for attack in attacks.values()]
    if max(steps) >= FEW_STEPS:
        return None
    reason = f"no attack takes more than {max(steps)} steps, which is a look and not an evaluation."
    return Finding("steps", "amber", reason, f"take {FEW_STEPS} steps or more.", {})


def _scale(attacks: dict[str, Attack], scale: float) -> Finding | None:
    """A cosine head, and no attack but on the cross entropy of its bare cosines."""
    if scale == 1.0 or not all(map(_at_scale_one, attacks.values())):
        return None
    reason = f"the cosine head was attacked at logit scale 1 only, and it was made for {scale:g}."
    return Finding("logit-scale", "amber", reason, "attack at that scale, or with cw or aa.", {})


def _is_pgd(attack: Attack) -> bool:
    return isinstance(attack, PGD) and attack.steps > 0


def _is_noise(attack: Attack) -> bool:
    return isinstance(attack, PGD) and attack.steps == 0


def _is_square(attack: Attack) -> bool:
    return isinstance(attack, Square)


def _is_autoattack(attack: Attack) -> bool:
    return isinstance(attack, AA)


def _climbs(attack: Attack) -> bool:
    return not (_is_noise(attack) or _is_square(attack) or _is_autoattack(attack))


def _at_scale_one(attack: Attack) -> bool:
    """Whether an attack depends on the logit scale and leaves it as it is."""
    if isinstance(attack, PGD):
        return attack.loss in ("ce", "kl") and attack.loss_scale == 1.0
    return isinstance(attack, (MIM, ApgdCE))
