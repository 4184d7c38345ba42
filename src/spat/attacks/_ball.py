"""The geometry of `spat.threat` for the rows of a search, each with a budget of its own.

No checks and no host syncs, as these run in every step. Sums are written in the order of the
official AutoAttack, on which the last bit of an iterate depends.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spat.attacks._state import column
from spat.threat import TINY, Norm


def box(x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest image of the Linf ball within [0, 1]."""
    eps = column(eps, x)
    return (x - eps).clamp_(min=0.0), (x + eps).clamp_(max=1.0)


def size(norm: Norm, v: Tensor) -> Tensor:
    """[n] the norm of each row."""
    flat = v.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.square().sum(1).sqrt()


def unit(norm: Norm, v: Tensor) -> Tensor:
    """Rows of norm one; zero stays zero."""
    return v / column(size(norm, v) + TINY, v)


def steepest(norm: Norm, gradient: Tensor) -> Tensor:
    """The step of norm one that raises a linear function most."""
    return gradient.sign() if norm == "linf" else unit("l2", gradient)


def project(norm: Norm, z: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    """Into the ball around x, then into [0, 1]."""
    if norm == "linf":
        return torch.clamp(z, *box(x, eps))
    change = z - x
    length = size("l2", change)
    direction = change / column(length + TINY, x)
    return torch.clamp(x + direction * column(torch.minimum(eps, length), x), 0.0, 1.0)
