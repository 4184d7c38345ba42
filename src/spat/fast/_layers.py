"""The layers of a fast copy: frozen, and changed only through `load`.

The gradient of an image of C channels is a convolution with C output channels: 1 or 3, where a
vector register holds 16, so that most of the arithmetic is wasted. `InputConv` computes a block of
r x r pixels at once, as the C r r channels of a strided convolution whose kernels are shifted to
each pixel's place.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from spat.fast._hardware import has_fast_bfloat16

VECTOR = 16  # channels that fill a vector register
FEW, MANY = 16, 2**16  # pixels of a map; weights of a tap: where a matrix product is faster


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
    """The convolution `conv` with other weights, and always a bias; `like` says type and device.

    relu: whether it computes relu(conv(x)), or relu(conv(x) + other), in one pass over memory
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, like: Tensor) -> None:
        super().__init__()
        assert isinstance(conv.padding, tuple)
        self.stride, self.padding = conv.stride, conv.padding
        self.dilation, self.groups = conv.dilation, conv.groups
        self.relu = False
        weight = torch.zeros_like(conv.weight, dtype=like.dtype).detach()
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", like.new_zeros(conv.out_channels))

    def load(self, weight: Tensor, bias: Tensor) -> None:
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    @property
    def fuses(self) -> bool:
        """Whether `relu` may be set: where oneDNN computes the convolution."""
        low = self.weight.dtype == torch.bfloat16 and has_fast_bfloat16("cpu")
        known = low or self.weight.dtype == torch.float32
        has_kernels = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        return self.weight.device.type == "cpu" and known and has_kernels

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if not self.relu:
            return self.compute(x)
        out: Tensor = _Explicit.apply(x, other, self)  # type: ignore[no-untyped-call]
        return out

    def compute(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        rest = (self.dilation, self.groups)
        if not self.relu:
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, *rest)
        run: Any = torch.ops.mkldnn._convolution_pointwise
        given = (self.weight, self.bias, self.padding, self.stride, *rest)
        if other is None:
            return cast(Tensor, run(x, *given, "relu", [], ""))
        other = other.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, run.binary(x, other, *given, "add", 1.0, "relu", [], ""))

    def input_gradient(self, g: Tensor, shape: torch.Size) -> Tensor:
        place = (self.stride, self.padding, self.dilation, self.groups)
        gradient: Tensor = conv2d_input(shape, self.weight, g, *place)  # type: ignore[no-untyped-call]
        return gradient


class _Explicit(torch.autograd.Function):
    """A convolution whose gradient is the layer's own `input_gradient`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor | None, conv: FoldedConv) -> Tensor:
        out = conv.compute(x, other)
        ctx.conv, ctx.shape, ctx.adds = conv, x.shape, other is not None
        if conv.relu:
            ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if ctx.conv.relu:
            g = torch.ops.aten.threshold_backward(g, *ctx.saved_tensors, 0)
        g = g.contiguous(memory_format=torch.channels_last)
        return ctx.conv.input_gradient(g, ctx.shape), g if ctx.adds else None, None


class MatrixConv(FoldedConv):
    """A 3x3 convolution of many channels on a map of few pixels, on a CPU.

    Convolution kernels work along rows of pixels, of which there are four here, and matrix products
    along all pixels of the batch: [n h w, 9 channels] x [9 channels, channels].
    """

    back: Tensor

    def __init__(self, conv: nn.Conv2d, like: Tensor) -> None:
        super().__init__(conv, like)
        self.register_buffer("back", like.new_zeros(9 * conv.out_channels, conv.in_channels))

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        return (
            conv.weight.device.type == "cpu"
            and conv.in_channels * conv.out_channels >= MANY
            and conv.kernel_size == (3, 3)
            and conv.stride == conv.padding == conv.dilation == (1, 1)
            and conv.groups == 1
        )

    def load(self, weight: Tensor, bias: Tensor) -> None:
        super().load(weight, bias)
        self.back.copy_(weight.permute(2, 3, 0, 1).reshape(self.back.shape))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        out: Tensor = _Explicit.apply(x, other, self)  # type: ignore[no-untyped-call]
        return out

    def compute(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if not _is_small(x.shape):
            return super().compute(x, other)
        rows = self.weight.permute(0, 2, 3, 1).flatten(1)
        out = _map(F.linear(_taps(x), rows, self.bias), x.shape)
        out = out if other is None else out.add_(other)
        return out.relu_() if self.relu else out

    def input_gradient(self, g: Tensor, shape: torch.Size) -> Tensor:
        if not _is_small(shape):
            return super().input_gradient(g, shape)
        return _map(_taps(g, flipped=True) @ self.back, shape)


def _is_small(shape: torch.Size) -> bool:
    return shape[2] * shape[3] <= FEW


def _taps(x: Tensor, flipped: bool = False) -> Tensor:
    """[n h w, 9 C]: the pixels under each of the nine taps of a kernel, or under its half turn."""
    n, channels, h, w = x.shape
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    taps = [padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    return torch.cat(taps[::-1] if flipped else taps, 3).view(n * h * w, 9 * channels)


def _map(rows: Tensor, shape: torch.Size) -> Tensor:
    """[n h w, C] as images, channels last."""
    return rows.view(shape[0], shape[2], shape[3], -1).permute(0, 3, 1, 2)


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

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        out: Tensor = _Explicit.apply(x, other, self)  # type: ignore[no-untyped-call]
        return out

    def input_gradient(self, g: Tensor, shape: torch.Size) -> Tensor:
        if shape[2] % self.block or shape[3] % self.block:
            return super().input_gradient(g, shape)
        pixels = F.conv2d(g, self.shifted, stride=self.block, padding=self.back_padding)
        return F.pixel_shuffle(pixels, self.block)
