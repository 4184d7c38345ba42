"""Targeted FAB: one hyperplane a step, for the classes nearest on the clean image in turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spat.attacks._fab import BoundarySearch
from spat.attacks._search import Batch
from spat.attacks._targets import check_targets, fewer_targets, towards


@dataclass(frozen=True, kw_only=True)
class FabT(BoundarySearch):
    """Targeted fast adaptive boundary attack (Croce & Hein 2020), class by class.

    targets: the classes whose boundary is sought, in the order of the clean logits
    """

    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_targets(self.targets)

    def rounds(self, classes: int) -> int:
        return min(self.targets, classes - 1)

    def gradients(self, classes: int) -> int:
        return 1

    def target(self, batch: Batch, round: Tensor) -> Tensor:
        return batch.targets(round + 1)

    def plane(self, z: Tensor, logits: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        gap = towards(logits, y, t)
        (gradient,) = torch.autograd.grad(gap.sum(), z)
        return gap.detach(), gradient

    def remark(self, classes: int) -> str:
        return fewer_targets(self.targets, classes)
