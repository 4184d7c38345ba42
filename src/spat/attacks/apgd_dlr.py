"""Auto-PGD on the difference of logits ratio, which does not depend on the scale of the logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spat import losses
from spat.attacks._apgd import RestartedAPGD


@dataclass(frozen=True, kw_only=True)
class ApgdDLR(RestartedAPGD):
    """Auto-PGD on the difference of logits ratio (Croce & Hein 2020); the margin for 2 classes."""

    def loss(self, z: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return losses.dlr(z, y) if z.shape[1] > 2 else -losses.margin(z, y)

    def remark(self, classes: int) -> str:
        return "2 classes: the margin stands in for DLR, which needs 3." if classes < 3 else ""
