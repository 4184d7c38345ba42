"""The last layer of every architecture: PyTorch's Linear, or one that returns cosines."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from spat.errors import UserError, unknown

HeadKind = Literal["linear", "cosine"]
TINY = 1e-6  # dead ReLUs give norm 0; below this, dividing by the norm only amplifies noise


def unit(v: Tensor) -> Tensor:
    """Rows of length one; a row of (almost) no length is left as it is.

    Dividing by max(norm, 1e-12) would give a zero row a gradient of 1e12; here it is 1.
    """
    norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / torch.where(norm > TINY, norm, 1.0)


class CosineHead(nn.Linear):
    """Cosines between features and class rows, each normalised in the graph, not in place.

    No scale is applied: losses multiply by theirs. `scale` only tells an evaluation which one.
    """

    def __init__(
        self, features: int, classes: int, *, bias: bool = False, scale: float = 5.0
    ) -> None:
        super().__init__(features, classes, bias=bias)
        self.scale = scale

    def reset_parameters(self) -> None:
        """PyTorch's initialisation, with unit rows."""
        super().reset_parameters()
        self.renormalise_()

    def forward(self, z: Tensor) -> Tensor:
        """Never in low precision: three digits of a cosine are too few for a difference of two."""
        dtype = torch.promote_types(z.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(dtype)
        with torch.autocast(z.device.type, enabled=False):
            return linear(unit(z.to(dtype)), unit(self.weight.to(dtype)), bias)

    @torch.no_grad()
    def renormalise_(self) -> None:
        """Make the rows unit in place, for after an optimiser step; a zero row stays zero."""
        norm = torch.linalg.vector_norm(self.weight, dim=-1, keepdim=True)
        self.weight.div_(torch.where(norm > 0, norm, 1.0))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale}"


def make_head(kind: str, features: int, classes: int, *, bias: bool, scale: float) -> nn.Linear:
    """The head of that kind; `bias` and `scale` are the cosine head's, a linear one has a bias."""
    if kind not in get_args(HeadKind):
        raise unknown("head", kind, get_args(HeadKind))
    if classes < 2:
        raise UserError(
            f"classes must be at least 2, got {classes}; set it to the number of labels."
        )
    if not 0 < scale < math.inf:
        raise UserError(
            f"scale must be a positive number, got {scale}; the paper's are 5 and 9 (wrn)."
        )
    if kind == "linear":
        return nn.Linear(features, classes)
    return CosineHead(features, classes, bias=bias, scale=scale)


def cosine_heads(model: nn.Module) -> list[CosineHead]:
    """The cosine heads inside a model, in the order in which they were registered."""
    return [part for part in model.modules() if isinstance(part, CosineHead)]


def head_scale(model: nn.Module) -> float:
    """The scale that the model's cosine head was made for; 1 for a model without one."""
    heads = cosine_heads(model)
    return heads[-1].scale if heads else 1.0


def renormalise_heads(model: nn.Module) -> None:
    """Make the class rows of every cosine head unit again, in place."""
    for head in cosine_heads(model):
        head.renormalise_()
