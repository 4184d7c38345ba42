"""One step of a gradient attack in the max norm, in place."""

from __future__ import annotations

from torch import Tensor


class LinfUpdate:
    """x' -> P(x' + size sign(g)), P onto the ball of radius eps around x and onto [0, 1].

    As x lies in [0, 1], one clamp to [max(x - eps, 0), min(x + eps, 1)] equals, bit for bit, one to
    the ball and then one to the box; its bounds are computed once for all steps.
    """

    def __init__(self, x: Tensor, eps: float | Tensor, size: float | Tensor) -> None:
        self.low, self.high = (x - eps).clamp_(min=0.0), (x + eps).clamp_(max=1.0)
        self.size = size

    def __call__(self, x_adv: Tensor, gradient: Tensor) -> Tensor:
        """The next iterate; both arguments are overwritten."""
        step = gradient.sign_().mul_(self.size)
        return x_adv.add_(step).clamp_(self.low, self.high)
