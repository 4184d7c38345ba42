"""The layers of a fast copy: frozen, and changed only through `load`.

The gradient of an image of C channels is a convolution with C output channels: 1 or 3, where a
vector register holds 16, so that most of the arithmetic is wasted. `InputConv` computes a block of
r x r pixels at once, as the C r r channels of a strided convolution whose kernels are shifted to
each pixel's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from spat.fast._hardware import has_fast_bfloat16
from spat.fast._pool import where_positive

VECTOR = 16  # channels that fill a vector register


def _channels_last_zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Also of one channel, where every layout counts as channels-last and `contiguous` keeps it.

    A convolution takes the layout of its output from the strides of its weights.
    """
    settings: Any = {"dtype": like.dtype, "device": like.device}
    return torch.empty(shape, memory_format=torch.channels_last, **settings).zero_()


def channels_last(x: Tensor) -> Tensor:
    """Images [n, c, h, w], or a batch that lies deep, with the channels of a pixel side by side."""
    last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return x.contiguous(memory_format=last)


class Affine(nn.Module):
    """s x + t, for each channel."""

    s: Tensor
    t: Tensor

    def __init__(self, channels: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("s", like.new_zeros(channels))
        self.register_buffer("t", like.new_zeros(channels))

    def load(self, s: Tensor, t: Tensor) -> None:
        self.s.copy_(s)
        self.t.copy_(t)

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *(1 for _ in x.shape[2:]))
        return torch.addcmul(self.t.reshape(shape), x, self.s.reshape(shape))


class FoldedConv(nn.Module):
    """The convolution `conv` with other weights, and always a bias; `like` says type and device.

    Where oneDNN computes it, the weights are put once, not at each call, in the order that its
    kernel reads: at four pixels a row, ordering them costs a fifth of the arithmetic.
    fuses: whether oneDNN computes it; only then may `relu` be set
    relu: whether it computes relu(conv(x)), or relu(conv(x) + other), in one pass over memory
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, like: Tensor, *, fuse: bool = True) -> None:
        super().__init__()
        assert isinstance(conv.padding, tuple)
        self.fuses = fuse and _has_kernels(like)
        self.stride, self.padding = conv.stride, conv.padding
        self.dilation, self.groups = conv.dilation, conv.groups
        self.relu = False
        self.register_buffer("weight", _channels_last_zeros(conv.weight.shape, like))
        self.register_buffer("bias", like.new_zeros(conv.out_channels))
        self.packed: dict[object, Tensor] = {}

    @property
    def takes_depth(self) -> bool:
        return self.fuses and self.groups == 1

    def load(self, weight: Tensor, bias: Tensor) -> None:
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        self.packed.clear()

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if not self.fuses:
            return self.plain(x)
        out: Tensor = _Explicit.apply(x, other, self)  # type: ignore[no-untyped-call]
        return out

    def plain(self, x: Tensor) -> Tensor:
        rest = (self.dilation, self.groups)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, *rest)

    def compute(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if not self.fuses:
            return self.plain(x)
        run: Any = torch.ops.mkldnn._convolution_pointwise
        place = (*self._place(x.ndim), self.groups)
        given = (self._packed(x.shape, "_reorder_convolution_weight", *place), self.bias, *place)
        if other is None:
            return cast(Tensor, run.default(x, *given, "relu" if self.relu else "none", [], ""))
        other = channels_last(other)
        return cast(Tensor, run.binary(x, other, *given, "add", 1.0, "relu", [], ""))

    def input_gradient(self, g: Tensor, shape: torch.Size) -> Tensor:
        padding, stride, dilation = self._place(g.ndim)
        if self.groups > 1 or not self.fuses:
            place = (stride, padding, dilation, self.groups)
            plain: Tensor = conv2d_input(shape, self.weight, g, *place)  # type: ignore[no-untyped-call]
            return plain
        run: Any = torch.ops.mkldnn._convolution_transpose_pointwise.default
        back = (padding, self._lost(shape), stride, dilation, self.groups)
        weight = self._packed(g.shape, "_reorder_convolution_transpose_weight", *back)
        return cast(Tensor, run(g, weight, None, *back, "none", [], ""))

    def _place(self, ndim: int) -> tuple[list[int], ...]:
        """Padding, stride and dilation; images of a batch that lies deep do not touch."""
        apart = ndim - 4
        return (
            [*self.padding, *[0] * apart],
            [*self.stride, *[1] * apart],
            [*self.dilation, *[1] * apart],
        )

    def _lost(self, shape: torch.Size) -> list[int]:
        """Rows and columns at the end that no step of the stride reaches."""
        kernel = (*self.weight.shape[2:], *[1] * (len(shape) - 4))
        places = zip(shape[2:], kernel, *self._place(len(shape)), strict=True)
        return [(size + 2 * p - d * (k - 1) - 1) % stride for size, k, p, stride, d in places]

    def _packed(self, shape: torch.Size, order: str, *place: object) -> Tensor:
        """The weights as the kernel reads them; other batch sizes are right too, if not as fast."""
        deep = len(shape) == 5
        key = (order, deep, shape[1:4])
        if key not in self.packed:
            reorder = getattr(torch.ops.mkldnn, order)
            weight = deepened(self.weight) if deep else self.weight
            self.packed[key] = reorder(weight, *place, list(shape))
        return self.packed[key]


def deepened(weight: Tensor) -> Tensor:
    """[o, i, kh, kw, 1]: a view, with the strides of channels-last, which `unsqueeze` has not."""
    return weight.as_strided((*weight.shape, 1), (*weight.stride(), weight.stride(3)))


def _has_kernels(like: Tensor) -> bool:
    """Whether oneDNN computes in this type, on this device."""
    known = like.dtype == torch.float32 or (
        like.dtype == torch.bfloat16 and has_fast_bfloat16("cpu")
    )
    available = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return like.device.type == "cpu" and known and available


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
            g = where_positive(g, *ctx.saved_tensors)
        g = channels_last(g)
        return ctx.conv.input_gradient(g, ctx.shape), g if ctx.adds else None, None


class InputConv(FoldedConv):
    """The first convolution, on a CPU."""

    shifted: Tensor

    def __init__(self, conv: nn.Conv2d, like: Tensor, *, fuse: bool = True) -> None:
        super().__init__(conv, like, fuse=fuse)
        channels, (kh, kw) = conv.in_channels, conv.weight.shape[2:]
        self.block = r = 4 if channels * 4 * 4 <= VECTOR else 2
        self.back_padding = [kh - 1 - self.padding[0], kw - 1 - self.padding[1]]
        shape = (channels * r * r, conv.out_channels, kh + r - 1, kw + r - 1)
        self.register_buffer("shifted", _channels_last_zeros(shape, like))

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
        r = self.block
        if shape[2] % r or shape[3] % r:
            return super().input_gradient(g, shape)
        if g.ndim == 4:
            return F.pixel_shuffle(F.conv2d(g, self.shifted, None, r, self.back_padding), r)
        pixels = F.conv3d(g, deepened(self.shifted), None, (r, r, 1), (*self.back_padding, 0))
        blocks = pixels.reshape(1, shape[1], r, r, *pixels.shape[2:])
        return blocks.permute(0, 1, 4, 2, 5, 3, 6).reshape(shape)
