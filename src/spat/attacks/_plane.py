"""The shortest way to a hyperplane that stays in the pixel box, exactly, in Linf or L2.

For a point p, find the d of least norm with w.d = need and 0 <= p + d <= 1. Each coordinate moves
with the sign of need * w until it meets the box, at its own speed (u_i = 1 in Linf, |w_i| in L2):

    d_i = +-min( s u_i, room_i ),      f(s) = sum_i |w_i| min( s u_i, room_i ) = |need|

f is concave, increasing and piecewise linear, so Newton's method from s = 0 climbs to its root
without overshooting and in finitely many rounds, in practice three or four: each round only
takes out the coordinates that have met the box. No sorting is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spat.threat import Norm


def shortest_move(norm: Norm, p: Tensor, w: Tensor, need: Tensor) -> Tensor:
    """d [n, D] for points p and normals w [n, D] and need [n].

    Where the box does not reach the hyperplane, every coordinate goes as far as it can.
    """
    way = w.sign() * need.sign()[:, None]
    room = torch.where(way > 0, 1.0 - p, p).clamp_(min=0.0)
    weight = w.abs()
    speed = torch.ones_like(w) if norm == "linf" else weight
    s = _solve(weight, speed, room, need.abs())
    return way * torch.minimum(s[:, None] * speed, room)


def _solve(weight: Tensor, speed: Tensor, room: Tensor, need: Tensor) -> Tensor:
    """[n] the root s of f; the largest number where there is none."""
    free = room > 0
    filled, slope = weight * room, weight * speed
    unreachable = torch.finfo(need.dtype).max
    while True:
        at_box = torch.where(free, 0.0, filled).sum(1)
        rate = torch.where(free, slope, 0.0).sum(1)
        s = torch.where(rate > 0, ((need - at_box) / rate).clamp(min=0.0), unreachable)
        # Coordinates never come back, whatever rounding does: so the loop ends.
        still_free = free & (s[:, None] * speed < room)
        if torch.equal(still_free, free):
            return s
        free = still_free
