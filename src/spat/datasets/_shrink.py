"""Smaller images: each pixel is the mean of the area that it covers in the original.

x' = R x C^T.   R [h', h], C [w', w]: which share of each new row (column) each old one makes up.
Nothing finer than the new pixels is left to alias, and a constant image stays constant.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shrunk(x: Tensor, scale: float) -> Tensor:
    """Float images x [n, c, h, w] in [0, 1] with sides of `scale` times theirs, rounded."""
    rows, columns = (_shares(side, max(1, round(side * scale))).to(x) for side in x.shape[2:])
    return (rows @ x @ columns.T).clamp_(0, 1)  # a sum of shares may exceed 1 by rounding


def _shares(old: int, new: int) -> Tensor:
    """[new, old]: the overlap of new pixel i with old pixel j, as a share of the new one."""
    edges = torch.arange(new + 1, dtype=torch.float64) * old / new
    places = torch.arange(old)
    ends = torch.minimum(edges[1:, None], places + 1)
    starts = torch.maximum(edges[:-1, None], places)
    return (ends - starts).clamp_(min=0) * new / old
