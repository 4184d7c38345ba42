"""BatchNorm in eval mode is affine: it folds into the convolution before it, or stands alone.

s = weight / sqrt(running_var + eps),   t = bias - running_mean s
bn(x) = s x + t,      bn(conv(x; W, b)) = conv(x; s W, s b + t)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spat.fast._layers import Affine, FoldedConv, InputConv


@dataclass(frozen=True)
class Layer:
    """A layer of the copy, and the names of the layers of the model that it is computed from."""

    target: Affine | FoldedConv | InputConv
    conv: str | None = None
    bn: str | None = None

    @torch.no_grad()
    def refresh(self, model: nn.Module) -> None:
        st = None if self.bn is None else affine(model.get_submodule(self.bn))
        if self.conv is not None:
            st = folded(model.get_submodule(self.conv), st)
        if st is not None:
            self.target.load(*st)


def affine(bn: nn.Module) -> tuple[Tensor, Tensor]:
    """s and t."""
    assert isinstance(bn, nn.BatchNorm2d | nn.SyncBatchNorm)
    assert bn.running_var is not None
    assert bn.running_mean is not None
    s = torch.rsqrt(bn.running_var + bn.eps)
    s = s if bn.weight is None else s * bn.weight
    t = -bn.running_mean * s
    return s, t if bn.bias is None else t + bn.bias


def folded(conv: nn.Module, st: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution and the BatchNorm after it, if there is one."""
    assert isinstance(conv, nn.Conv2d)
    bias = conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias
    if st is None:
        return conv.weight, bias
    s, t = st
    return conv.weight * s.reshape(-1, 1, 1, 1), bias * s + t
