"""AutoAttack `standard` (Croce & Hein 2020): four attacks, each on what the ones before left.

APGD-CE, APGD-T (9 targets), FAB-T (9 targets), Square (5000 queries). An image that an attack
breaks leaves at once, and each image has random numbers of its own, so the result does not depend
on batches. Flags are not those of the official code to the last image, whose numbers depend on its
batches: `standard_exact` reproduces them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from spat import rng as random
from spat.attacks._base import Attack
from spat.attacks._standard import standard
from spat.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AA(Attack):
    """AutoAttack standard: APGD-CE, APGD-T, FAB-T and Square, each on the survivors of the last.

    queries: of Square
    """

    queries: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries < 1:
            raise UserError(f"queries must be 1 or more, got {self.queries}.")

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, source: random.Source) -> Tensor:
        x_adv, left = x.clone(), torch.arange(len(x), device=x.device)
        parts = standard(eps=1.0, norm=self.norm, queries=self.queries, official=False)
        for name, part in parts.items():
            if not len(left):
                break
            eps = self.eps[left] if isinstance(self.eps, Tensor) and self.eps.ndim else self.eps
            own = random.fork(random.take(source, left), name)
            attack = replace(part, eps=eps)
            found = attack.search(model, attack.batch(model, x[left], y[left], own))
            x_adv[left[found.broken]] = found.x_adv[found.broken]
            left = left[~found.broken]
        return x_adv
