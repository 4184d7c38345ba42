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
    room = (way.clamp(min=0.0) - p).abs()  # to 1 for those that go up, to 0 for the others
    weight = w.abs()
    # Speeds of one in Linf: then a product with them is a pass over the images that can be saved.
    met = room if norm == "linf" else room / weight
    slope = weight if norm == "linf" else weight * weight
    s = _solve(weight * room, slope, met, need.abs())[:, None]
    return way * torch.minimum(s if norm == "linf" else s * weight, room)


def _solve(filled: Tensor, slope: Tensor, met: Tensor, need: Tensor) -> Tensor:
    """[n] the root s of f; the largest number where there is none.

    filled: [n, D] |w| room, what a coordinate gives once it has met the box
    slope: [n, D] |w| u, what it gives per unit of s before
    met: [n, D] the s at which it meets the box
    """
    free = (met > 0).to(need)
    unreachable = torch.finfo(need.dtype).max
    while True:
        at_box = torch.linalg.vecdot(filled, 1.0 - free)
        rate = torch.linalg.vecdot(slope, free)
        s = torch.where(rate > 0, ((need - at_box) / rate).clamp(min=0.0), unreachable)
        # Coordinates never come back, whatever rounding does: so the loop ends.
        still_free = free * (s[:, None] < met)
        if torch.equal(still_free, free):
            return s
        free = still_free
