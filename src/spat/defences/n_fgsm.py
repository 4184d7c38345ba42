"""N-FGSM, noisy fast adversarial training (de Jorge et al., NeurIPS 2022).

    eta ~ U(-k eps, k eps),   x_0 = x + eta in [0, 1]
    x' = x_0 + ratio eps sign(grad CE(f(x_0), y)) in [0, 1],    loss = CE(z', y)

z' = f(x').   k: `noise`, 2.   ratio: `step_ratio`, 1. x' is not projected on the eps ball: that is
the point of the method, which trains on changes of up to (k + ratio) eps and so avoids the
catastrophic overfitting of FGSM-RS. It can still overfit at large eps: raise `noise` then.
The authors attack with BatchNorm in training mode; here the attack sees evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from spat.attacks._base import Rng, as_source
from spat.attacks.pgd import PGD
from spat.defences._base import Crafted, Defence, Terms, in_range, positive
from spat.losses import ce


@dataclass(frozen=True, kw_only=True)
class NFGSM(Defence):
    """Fast adversarial training: one signed step after strong noise, not clipped to the eps ball.

    noise: half-width of the uniform noise in units of eps
    step_ratio: length of the step in units of eps, unless attack.step_size is given
    """

    noise: float = 2.0
    step_ratio: float = 1.0
    attack: PGD = PGD(steps=1, start="uniform")

    def __post_init__(self) -> None:
        positive("n-fgsm", step_ratio=self.step_ratio)
        in_range("n-fgsm", 0.0, float("inf"), noise=self.noise)

    @property
    def inner(self) -> PGD:
        """One step in a ball that noise and step together cannot leave."""
        eps = float(self.attack.eps)
        given = self.attack.step_size
        step = self.step_ratio * eps if given is None else given
        return replace(
            self.attack,
            eps=self._within(self.noise * eps + self.attack.steps * step),
            step_size=step,
        )

    def craft(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        noise: Tensor | None = None,
    ) -> Crafted:
        source = as_source(rng)
        if noise is None:
            ball = replace(self.attack, eps=self._within(self.noise * float(self.attack.eps)))
            noise = ball.threat.start(x, source)
        return super().craft(model, x, y, rng=source, noise=noise)

    def terms(self, clean: Any, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
        loss = ce(adv, labels)
        return Terms(loss, {"ce": loss})

    def _within(self, reach: float) -> float:
        """A budget above 1 means no more than 1 where pixels lie in [0, 1]."""
        return min(reach, 1.0) if self.attack.norm == "linf" else reach
