"""The layers of a fast copy: frozen, and changed only through `load`.

The gradient of an image of C channels is a convolution with C output channels: 1 or 3, where a
vector register holds 16, so that most of the arithmetic is wasted. `InputConv` computes a block of
r x r pixels at once, as the C r r channels of a strided convolution whose kernels are shifted to
each pixel's place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VECTOR = 16  # channels that fill a vector register


class Affine(nn.Module):
    """s x + t, for each channel."""

    s: Tensor
    t: Tensor

    def __init__(self, channels: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("s", like.new_zeros(channels, 1, 1))
        self.register_buffer("t", like.new_zeros(channels, 1, 1))

    def load(self, s: Tensor, t: Tensor) -> None:
        self.s.copy_(s.reshape(-1, 1, 1))
        self.t.copy_(t.reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.t, x, self.s)


class FoldedConv(nn.Module):
    """The convolution `conv` with other weights, and always a bias; `like` says type and device."""

    weight: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, like: Tensor) -> None:
        super().__init__()
        assert isinstance(conv.padding, tuple)
        self.stride, self.padding = conv.stride, conv.padding
        self.dilation, self.groups = conv.dilation, conv.groups
        weight = torch.zeros_like(conv.weight, dtype=like.dtype).detach()
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", like.new_zeros(conv.out_channels))

    def load(self, weight: Tensor, bias: Tensor) -> None:
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class InputConv(FoldedConv):
    """The first convolution, on a CPU."""

    shifted: Tensor

    def __init__(self, conv: nn.Conv2d, like: Tensor) -> None:
        super().__init__(conv, like)
        channels, (kh, kw) = conv.in_channels, conv.weight.shape[2:]
        self.block = r = 4 if channels * 4 * 4 <= VECTOR else 2
        self.back_padding = [kh - 1 - self.padding[0], kw - 1 - self.padding[1]]
        shape = (channels * r * r, conv.out_channels, kh + r - 1, kw + r - 1)
        shifted = like.new_zeros(shape).contiguous(memory_format=torch.channels_last)
        self.register_buffer("shifted", shifted)

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        return (
            conv.weight.device.type == "cpu"
            and conv.in_channels * 2 * 2 <= VECTOR
            and conv.stride == conv.dilation == (1, 1)
            and conv.groups == 1
            and isinstance(conv.padding, tuple)
            and all(p < k for p, k in zip(conv.padding, conv.kernel_size, strict=True))
        )

    def load(self, weight: Tensor, bias: Tensor) -> None:
        super().load(weight, bias)
        kh, kw = weight.shape[2:]
        flipped, r = weight.transpose(0, 1).flip(2, 3), self.block
        pixels = self.shifted.view(-1, r, r, *self.shifted.shape[1:])
        for i in range(r):
            for j in range(r):
                pixels[:, i, j, :, i : i + kh, j : j + kw] = flipped

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % self.block or x.shape[3] % self.block:
            return super().forward(x)
        out: Tensor = _Blockwise.apply(x, self)  # type: ignore[no-untyped-call]
        return out

    def input_gradient(self, g: Tensor) -> Tensor:
        g = g.contiguous(memory_format=torch.channels_last)
        pixels = F.conv2d(g, self.shifted, stride=self.block, padding=self.back_padding)
        return F.pixel_shuffle(pixels, self.block)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, conv: InputConv) -> Tensor:
        ctx.conv = conv
        return FoldedConv.forward(conv, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.conv.input_gradient(g), None
