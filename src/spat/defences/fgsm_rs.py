"""FGSM-RS, fast adversarial training from a random start (Wong, Rice & Kolter, ICLR 2020).

    eta ~ U(-eps, eps),   x_0 = x + eta in [0, 1]
    x'  = P( x_0 + ratio eps sign(grad CE(f(x_0), y)) ),    loss = CE(z', y)

z' = f(x').   ratio: `step_ratio`, 1.25.   P: projection on the eps ball and [0, 1].
One gradient makes the attack, one the update.
The authors attack with BatchNorm in training mode; here the attack sees evaluation mode.

Known weakness: catastrophic overfitting. Within an epoch, accuracy under PGD can fall to zero while
accuracy under the one-step attack rises: keep the best epoch by a PGD with several steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Defence, Terms, positive
from spat.losses import ce


@dataclass(frozen=True, kw_only=True)
class FGSMRS(Defence):
    """Fast adversarial training: one signed step from a random start; can overfit its one step.

    step_ratio: length of the step in units of eps, unless attack.step_size is given
    """

    step_ratio: float = 1.25
    attack: PGD = PGD(steps=1, start="uniform")

    def __post_init__(self) -> None:
        positive("fgsm-rs", step_ratio=self.step_ratio)

    @property
    def inner(self) -> PGD:
        if self.attack.step_size is not None:
            return self.attack
        return replace(self.attack, step_size=self.step_ratio * float(self.attack.eps))

    def terms(self, clean: Any, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
        loss = ce(adv, labels)
        return Terms(loss, {"ce": loss})
