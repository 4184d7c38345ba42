"""Momentum iterative method (Dong et al. 2018): steps along the accumulated, normalised gradient.

    m = decay m + g / mean|g|,      x_{k+1} = P( x_k + step_size * steepest(m) )

The gradient is divided by its mean absolute value and then accumulated; accumulating its signs, as
some libraries do, is another attack. An all-zero gradient adds nothing: divided by zero it would
turn the momentum of that image into NaN, whose sign is 0, and silently end its attack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spat import losses
from spat import rng as random
from spat.attacks._base import Attack, first_logits
from spat.attacks._search import climb
from spat.attacks._state import column
from spat.errors import UserError
from spat.threat import TINY
from spat.threat import column as budget


@dataclass(frozen=True, kw_only=True)
class MIM(Attack):
    """Momentum iterative method on the cross entropy, from the clean image.

    steps: gradient steps
    step_size: length of a step; by default 2 eps / steps
    decay: how much of the momentum is kept in each step
    """

    steps: int = 20
    step_size: float | None = None
    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise UserError(f"steps must be 0 or more, got {self.steps}.")
        if self.step_size is not None and not self.step_size >= 0:
            raise UserError(f"step_size must be 0 or more, got {self.step_size:g}.")
        if not self.decay >= 0:
            raise UserError(f"decay must be 0 or more, got {self.decay:g}.")

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, source: random.Source) -> Tensor:
        first_logits(model, x, y)
        threat, y = self.threat, y.long()
        default = 2 * self.eps / max(self.steps, 1)
        size = budget(default if self.step_size is None else self.step_size, x)
        x = x.detach()
        x_adv, momentum = x, torch.zeros_like(x)
        for _ in range(self.steps):
            *_, gradient = climb(model, x_adv, lambda z: losses.ce(z, y))
            mean = gradient.abs().flatten(1).mean(1)
            momentum = self.decay * momentum + gradient / column(mean.clamp(min=TINY), x)
            x_adv = threat.project(x_adv + size * threat.steepest(momentum), x)
        return x_adv
