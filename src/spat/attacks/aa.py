"""AutoAttack `standard` (Croce & Hein 2020): four attacks, each on what the ones before left.

APGD-CE, APGD-T (9 targets), FAB-T (9 targets), Square (5000 queries). An image that an attack
breaks leaves at once, and each image has random numbers of its own, so the result does not depend
on batches. Flags are not those of the official code to the last image, whose numbers depend on its
batches: `standard_exact` reproduces them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from spat import rng as random
from spat.attacks._base import Attack
from spat.attacks._search import Search
from spat.attacks._standard import standard
from spat.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AA(Attack):
    """AutoAttack standard: APGD-CE, APGD-T, FAB-T and Square, each on the survivors of the last.

    queries: of Square
    frugal: of FAB-T: take iterates beyond eps for misclassified, a forward less a step
    patience: of FAB-T and Square: give up images whose gain so far, times this, would not do
    """

    queries: int = 5000
    frugal: bool = False
    patience: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries < 1:
            raise UserError(f"queries must be 1 or more, got {self.queries}.")
        if not self.patience >= 0:
            raise UserError(f"patience must be 0 or more, got {self.patience:g}.")

    def stages(self, *, official: bool = False) -> dict[str, Search[Any]]:
        """The attacks in their order; `official` is Square's."""
        parts = standard(eps=1.0, norm=self.norm, queries=self.queries, official=official)
        mine: dict[str, Any] = {"eps": self.eps, "frugal": self.frugal, "patience": self.patience}
        return {
            name: replace(part, **{key: mine[key] for key in mine if hasattr(part, key)})
            for name, part in parts.items()
        }

    def remark(self, classes: int) -> str:
        """What a report must say of it on a model of so many classes; else empty."""
        remarks = list(dict.fromkeys(part.remark(classes) for part in self.stages().values()))
        return " ".join(
            one for one in remarks if not any(one in rest for rest in remarks if rest != one)
        )

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, source: random.Source) -> Tensor:
        x_adv, left = x.clone(), torch.arange(len(x), device=x.device)
        for name, part in self.stages().items():
            if not len(left):
                break
            own = random.fork(random.take(source, left), name)
            attack = replace(part, eps=part.budget(x)[left])
            found = attack.search(model, attack.batch(model, x[left], y[left], own))
            x_adv[left[found.broken]] = found.x_adv[found.broken]
            left = left[~found.broken]
        return x_adv
