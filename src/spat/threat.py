"""Threat models: what an adversary may do to an image in [0, 1].

A threat is its budget and five verbs: a random start, the steepest step, the projection (on the
ball around x, then on the pixel box), both at once as one move of an attack, and the distance.
`eps` is one number, or one per example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spat import rng
from spat.config import Norm as Norm  # also this module's word
from spat.errors import UserError

Budget = float | Tensor
Move = Callable[[Tensor, Tensor], Tensor]
"""(x', gradient at x') -> the next x'; x' is overwritten."""
TINY = 1e-12  # keeps a zero gradient from becoming NaN when it is normalised


def column(value: Budget, like: Tensor) -> Budget:
    """A per-example budget shaped to broadcast over images; a plain number stays one."""
    if not isinstance(value, Tensor):
        return value
    if tuple(value.shape) not in ((), (len(like),)):
        raise UserError(
            f"a per-example eps must have shape ({len(like)},), one an image, "
            f"got {tuple(value.shape)}."
        )
    return value.to(like).reshape(-1, *[1] * (like.ndim - 1)) if value.ndim else value.to(like)


@dataclass(frozen=True)
class Linf:
    """No pixel moves by more than eps."""

    eps: Budget

    def __post_init__(self) -> None:
        low, high = _extent(self.eps)
        if not 0.0 <= low <= high <= 1.0:
            got = high if high > 1.0 else low
            hint = f" Did you mean {got:g}/255?" if 1.0 < got <= 255.0 else ""
            raise UserError(f"eps of Linf must lie in [0, 1], got {got:g}.{hint}")

    def start(self, x: Tensor, source: rng.Source) -> Tensor:
        """A perturbation uniform in the ball."""
        return (2 * rng.uniform(source, x) - 1) * column(self.eps, x)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The unit step that raises a linear function most; sign(0) = 0, as everywhere."""
        return gradient.sign()

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        eps = column(self.eps, x)
        return torch.clamp(torch.clamp(x_adv, x - eps, x + eps), 0.0, 1.0)

    def mover(self, x: Tensor, size: Budget) -> Move:
        """x' -> P(x' + size sign(g)), its bounds computed once for all steps.

        As x lies in [0, 1], one clamp to [max(x - eps, 0), min(x + eps, 1)] equals, bit for bit,
        one to the ball and then one to the box.
        """
        eps = column(self.eps, x)
        low, high = (x - eps).clamp_(min=0.0), (x + eps).clamp_(max=1.0)
        return lambda x_adv, g: x_adv.add_(g.sign().mul_(size)).clamp_(low, high)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """[n] largest change of a pixel."""
        return (x_adv - x).abs().flatten(1).amax(1)


@dataclass(frozen=True)
class L2:
    """The Euclidean length of the change is at most eps."""

    eps: Budget

    def __post_init__(self) -> None:
        low, _ = _extent(self.eps)
        if not low >= 0.0:
            raise UserError(f"eps of L2 must be 0 or more, got {low:g}.")

    def start(self, x: Tensor, source: rng.Source) -> Tensor:
        """A perturbation uniform in the ball: a random direction, the radius by its volume."""
        direction = self.steepest(rng.normal(rng.fork(source, "direction"), x))
        u = rng.uniform(rng.fork(source, "radius"), x.flatten(1)[:, :1])
        radius = u.pow(1.0 / x[0].numel()).reshape(-1, *[1] * (x.ndim - 1))
        return direction * radius * column(self.eps, x)

    def steepest(self, gradient: Tensor) -> Tensor:
        return gradient / (_length(gradient) + TINY)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Exact on the ball; the box is clipped after it, which can only come closer to x."""
        change = x_adv - x
        length = _length(change)
        shrunk = change * (column(self.eps, x) / (length + TINY)).clamp(max=1.0)
        return torch.clamp(x + shrunk, 0.0, 1.0)

    def mover(self, x: Tensor, size: Budget) -> Move:
        """x' -> P(x' + size g / ||g||)."""
        return lambda x_adv, g: self.project(x_adv.add_(self.steepest(g).mul_(size)), x)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """[n] Euclidean length of the change."""
        return _length(x_adv - x).flatten()


Threat = Linf | L2


def threat(norm: str, eps: Budget) -> Threat:
    """The threat model of a norm's name."""
    if norm == "linf":
        return Linf(eps)
    if norm == "l2":
        return L2(eps)
    raise UserError(f"norm must be 'linf' or 'l2', got {norm!r}.")


def _length(v: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(v.flatten(1), dim=1)
    return length.reshape(-1, *[1] * (v.ndim - 1))


def _extent(eps: Budget) -> tuple[float, float]:
    if isinstance(eps, Tensor):
        low, high = eps.detach().aminmax()
        return float(low), float(high)
    return float(eps), float(eps)
