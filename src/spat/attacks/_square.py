"""The moves of Square (Andriushchenko et al. 2020): where a query changes the image, and how.

n: rows.  c, h, w: channels, height and width.  In Linf a query recolours one square; in L2 it
moves the budget of one square to another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from spat.attacks import _ball as ball
from spat.attacks._state import column
from spat.threat import TINY, Norm

LAST_OF_STAGE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # the share halves after these
STAGES = len(LAST_OF_STAGE) + 1
TILES = 5  # an L2 start has so many tiles along the shorter side


@dataclass(frozen=True)
class Plan:
    """From random numbers to squares, for images of one size.

    A query takes one row of numbers. Its plan, a row of as many, is
    Linf: top, left, side and a sign per channel;
    L2: top, left, stage, top and left of the second square, turned (0 or 1), a sign per channel.
    """

    norm: Norm
    share: float
    shape: tuple[int, int, int]  # c, h, w
    half_open: bool  # as in the official code: the last row and column are never a corner

    @property
    def numbers(self) -> int:
        """How many random numbers a query takes."""
        return self.shape[0] + (2 if self.norm == "linf" else 5)

    @property
    def width(self) -> int:
        return self.shape[0] + (3 if self.norm == "linf" else 6)

    def squares(self, step: Tensor, u: Tensor) -> Tensor:
        """[..., width] the plans of queries step [...] from their numbers u [..., numbers]."""
        _, h, w = self.shape
        stage = torch.bucketize(step, torch.tensor(LAST_OF_STAGE, device=step.device))
        side = torch.tensor(self.sides, device=step.device)[stage]
        down, right = (extent - side + (not self.half_open) for extent in (h, w))
        first = [down * u[..., 0], right * u[..., 1]]
        if self.norm == "linf":
            head, signs = [*first, side], u[..., 2:]
        else:
            second = [down * u[..., 2], right * u[..., 3]]
            head, signs = [*first, stage, *second, u[..., 4] > 0.5], u[..., 5:]
        places = torch.stack([v.to(u).floor() for v in head], -1)
        return torch.cat([places, (2 * signs - 1).sign()], -1)

    @property
    def sides(self) -> tuple[int, ...]:
        """The side of the square in each stage; odd and at least 3 in L2, where there is room."""
        _, h, w = self.shape
        ideal = [round(math.sqrt(self.share / 2**k * h * w)) for k in range(STAGES)]
        if self.norm == "linf":
            return tuple(min(max(side, 1), h, w) for side in ideal)
        largest = min(h, w) - (min(h, w) + 1) % 2
        return tuple(min(max(side, 3) | 1, largest) for side in ideal)


def stripes(x: Tensor, eps: Tensor, u: Tensor) -> Tensor:
    """Linf start: a random colour of full contrast for each column of pixels; u: [n, c, 1, w]."""
    return torch.clamp(x + column(eps, x) * (2 * u - 1).sign(), 0.0, 1.0)


def recolour(z: Tensor, x: Tensor, eps: Tensor, plan: Tensor) -> Tensor:
    """Linf: a square of one colour, at the edge of the ball, into z; plan: [n, k, width].

    [n, k, c, h, w]: k images of each row, with a square of its own in each
    """
    tall, wide = (
        _inside(plan[..., at], plan[..., 2], extent).to(z) for at, extent in enumerate(x.shape[2:])
    )
    change = 2 * eps[:, None, None] * plan[..., 3:]
    bars = (change[..., None] * tall[:, :, None])[..., None]
    low, high = (edge[:, None] for edge in ball.box(x, eps))
    return torch.addcmul(z[:, None], bars, wide[:, :, None, None]).clamp_(low, high)


def recolour_one(z: Tensor, x: Tensor, eps: Tensor, plan: Tensor) -> Tensor:
    """Linf: the same with one square for all rows; plan: [width]."""
    top, left, side = (int(v) for v in plan[:3])
    at = (slice(None), slice(None), slice(top, top + side), slice(left, left + side))
    change = 2 * column(eps, x) * plan[None, 3:, None, None]
    recoloured = z.clone()
    recoloured[at] = torch.clamp(z[at] + change, *ball.box(x[at], eps))
    return recoloured


def tiles(h: int, w: int) -> tuple[int, list[tuple[int, int]]]:
    """L2 start: the side of a tile, and the corners of a centred grid of them."""
    side = max(min(h, w) // TILES, 1)
    tops, lefts = (range(extent % side // 2, extent - side + 1, side) for extent in (h, w))
    return side, [(top, left) for top in tops for left in lefts]


def mosaic(x: Tensor, eps: Tensor, u: Tensor) -> Tensor:
    """L2 start: a grid of bumps with random signs, of length eps; u: [n, tiles, c + 1]."""
    side, corners = tiles(*x.shape[2:])
    shapes, change = bumps((side,))[0].to(x), torch.zeros_like(x)
    for k, (top, left) in enumerate(corners):
        shape = shapes[(u[:, k, 0] > 0.5).long()][:, None]
        tile = shape * (2 * u[:, k, 1:] - 1).sign()[:, :, None, None]
        change[:, :, top : top + side, left : left + side] = tile
    return torch.clamp(x + ball.unit("l2", change) * column(eps, x), 0.0, 1.0)


def transfer(z: Tensor, x: Tensor, eps: Tensor, plan: Tensor, sides: tuple[int, ...]) -> Tensor:
    """L2: a second square gives up its change, and a bump in the first gets what is free."""
    h, w = x.shape[2:]
    change, stage = z - x, plan[:, 2].long()
    side = torch.tensor(sides, device=x.device)[stage]
    first, second = (_window(plan[:, k : k + 2], side, h, w) for k in (0, 3))
    inside = _energy(change * first).sqrt()
    both = _energy(change * (first | second))
    unused = (column(eps, x) ** 2 - change.square().sum((1, 2, 3), keepdim=True)).clamp(min=0.0)
    shape = bumps(sides).to(x)[stage, plan[:, 5].long()]
    bump = _placed(shape, plan[:, :2].long(), h, w)[:, None] * plan[:, 6:, None, None]
    new = (bump + change / (inside + TINY)) * first
    new = new / (_energy(new).sqrt() + TINY) * (unused / x.shape[1] + both).sqrt()
    change = torch.where(first, new, change * ~second)
    return torch.clamp(x + ball.unit("l2", change) * column(eps, x), 0.0, 1.0)


@cache
def bumps(sides: tuple[int, ...]) -> Tensor:
    """[stages, 2, s, s] a hill beside a valley, upright and turned, of unit length; zero-padded."""
    largest = max(sides)
    shapes = torch.zeros(len(sides), 2, largest, largest)
    for k, side in enumerate(sides):
        half = side // 2
        hills = [_hill(half, side), -_hill(side - half, side)] if half else [_hill(side, side)]
        upright = _of_length_one(torch.cat(hills))
        shapes[k, 0, :side, :side], shapes[k, 1, :side, :side] = upright, upright.T
    return shapes


def _hill(h: int, w: int) -> Tensor:
    """A pyramid of unit length: at distance k from its top it is the sum of 1 / m^2 over m > k."""
    away = torch.maximum(
        (torch.arange(h) - h // 2).abs()[:, None], (torch.arange(w) - w // 2).abs()[None]
    )
    heights = torch.zeros(max(h, w) // 2 + 1)
    for m in range(len(heights)):
        heights[: m + 1] += 1 / (m + 1) ** 2
    return _of_length_one(heights[away])


def _of_length_one(v: Tensor) -> Tensor:
    return v / v.square().sum().sqrt()


def _window(corner: Tensor, side: Tensor, h: int, w: int) -> Tensor:
    """[n, 1, h, w] whether a pixel lies in the square of its row; corner: [n, 2]."""
    tall, wide = (_inside(corner[:, k], side, extent) for k, extent in enumerate((h, w)))
    return tall[:, None, :, None] & wide[:, None, None, :]


def _inside(start: Tensor, side: Tensor, extent: int) -> Tensor:
    """[..., extent] whether a place is one of the `side` from `start` [...] on."""
    places = torch.arange(extent, device=start.device) - start[..., None]
    return (places >= 0) & (places < side[..., None])


def _placed(shape: Tensor, corner: Tensor, h: int, w: int) -> Tensor:
    """[n, h, w] the shape of each row moved to its corner; what lies around is masked later."""
    largest = shape.shape[-1] - 1
    rows, columns = (
        (torch.arange(extent, device=shape.device) - corner[:, k, None]).clamp(0, largest)
        for k, extent in enumerate((h, w))
    )
    each = torch.arange(len(shape), device=shape.device)[:, None, None]
    return shape[each, rows[:, :, None], columns[:, None, :]]


def _energy(v: Tensor) -> Tensor:
    """[n, c, 1, 1] squared length of each channel."""
    return v.square().sum((2, 3), keepdim=True)
