"""Auto-PGD on the cross entropy, the first attack of AutoAttack."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spat import losses
from spat.attacks._apgd import RestartedAPGD


@dataclass(frozen=True, kw_only=True)
class ApgdCE(RestartedAPGD):
    """Auto-PGD on the cross entropy (Croce & Hein 2020): no step size to choose."""

    def loss(self, z: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return losses.ce(z, y)
