"""Targeted Auto-PGD: the classes nearest on the clean image, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spat.attacks._apgd import APGD
from spat.attacks._search import Batch
from spat.attacks._targets import check_targets, fewer_targets, targeted_dlr, towards


@dataclass(frozen=True, kw_only=True)
class ApgdT(APGD):
    """Auto-PGD on the targeted difference of logits ratio (Croce & Hein 2020), class by class.

    targets: the classes to aim at, in the order of the clean logits; at most all others
    """

    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_targets(self.targets)

    def rounds(self, classes: int) -> int:
        return min(self.targets, classes - 1)

    def target(self, batch: Batch, round: Tensor) -> Tensor:
        return batch.targets(round + 1)

    def loss(self, z: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return targeted_dlr(z, y, target) if z.shape[1] > 3 else towards(z, y, target)

    def remark(self, classes: int) -> str:
        margin = f"{classes} classes: the margin stands in for targeted DLR, which needs 4."
        notes = [fewer_targets(self.targets, classes), margin if classes < 4 else ""]
        return " ".join(note for note in notes if note)
