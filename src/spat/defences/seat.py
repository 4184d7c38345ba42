"""SEAT, self-ensemble adversarial training (Wang & Wang, ICLR 2022).

    loss = CE(z', y)                                 the student's: Madry's loss
    teacher <- d_t teacher + (1 - d_t) student       after every update t = 0, 1, 2, ...
    d_t = min(max_decay, (t + 1) / (t + 10))

z' = f(x'): logits of the adversarial image; x' attacks the student. The teacher, a running average
of all parameters and of BatchNorm's statistics, takes no part in the loss and is what is evaluated.
Here the loss and the decay d_t are stated; the trainer keeps the average.
The authors also lower the learning rate linearly (recipe `cifar10-native`): their point is that
sharp drops make the averaged models too alike. A stepwise schedule is another experiment.
Their PGD-20 and PGD-100 ignore the number of steps and take 10: do not compare with those numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Defence, Terms
from spat.errors import UserError
from spat.losses import ce

PRESETS = {"official": {"attack.eps": 0.031, "attack.step_size": 0.007}}


@dataclass(frozen=True, kw_only=True)
class SEAT(Defence):
    """Madry's loss, evaluated with a running average of the weights.

    max_decay: what the decay of the average rises to
    """

    max_decay: float = 0.999
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="uniform")

    def __post_init__(self) -> None:
        if not 0 <= self.max_decay < 1:
            raise UserError(f"max_decay of seat must lie in [0, 1), got {self.max_decay:g}.")

    def ema_decay(self, step: int) -> float:
        return min(self.max_decay, (step + 1) / (step + 10))

    def terms(self, clean: Any, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
        loss = ce(adv, labels)
        return Terms(loss, {"ce": loss})
