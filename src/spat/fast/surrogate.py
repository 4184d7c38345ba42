"""A copy of a model to attack in its place: the same logits and input gradients, sooner.

The copy is in eval mode and frozen, its BatchNorms are folded into its convolutions, its weights
lie channels-last and are bfloat16 where the hardware multiplies that fast. Images, gradients and
logits are float32 throughout. A model whose code has no graph is copied as it is, and one that
cannot be copied is used itself; `notes` says what was done, and why.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spat.errors import unknown
from spat.fast._compiled import Compile, check_compile, compiled
from spat.fast._fold import Layer
from spat.fast._graph import UntraceableError, trace
from spat.fast._hardware import has_fast_bfloat16
from spat.fast._rewrite import lower, replace, reshape, tidy
from spat.fast._rows import row_by_row

Precision = Literal["auto", "float32", "bfloat16"]
LOW_TOLERANCE, TOLERANCE = 0.1, 1e-3  # of a copy's logits, relative to the largest of the model's


class Surrogate(nn.Module):
    """What `surrogate` makes.

    notes: what was done to the model and what could not be, one sentence each
    separable: whether an example's logits surely depend on that example alone
    any_layout: whether the model's own code surely takes images and weights channels-last
    """

    def __init__(self, net: nn.Module, notes: Sequence[str], separable: bool = False) -> None:
        super().__init__()
        self.net, self.notes, self.separable = net, tuple(notes), separable
        self.rewritten = self.any_layout = False
        self.layers: Sequence[Layer] = ()
        self.copied: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if self.rewritten and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        z = self.net(x)
        return z.to(torch.promote_types(z.dtype, torch.float32)) if isinstance(z, Tensor) else z

    @torch.no_grad()
    def refresh(self, model: nn.Module) -> None:
        """Take over the present weights and running statistics of the model it was made from."""
        for layer in self.layers:
            layer.refresh(model)
        if self.copied:
            own = _tensors(model)
            torch._foreach_copy_(list(self.copied.values()), [own[name] for name in self.copied])


def surrogate(
    model: nn.Module,
    *,
    precision: Precision = "auto",
    fold: bool = True,
    fuse: bool = True,
    example: Tensor | None = None,
    compile: Compile = "off",
) -> Surrogate:
    """A fast copy of `model`, which stays as it is.

    precision: bfloat16, or the model's own; auto: bfloat16 where the hardware multiplies it fast
    fold: whether BatchNorms become part of the convolutions before them
    fuse: whether convolutions compute what follows them too, their weights in their kernels' order
    example: images on which to check the copy; where it differs, the model is copied as it is
    compile: off; inductor (torch.compile), or cuda-graphs (recorded launches), of a rewritten copy
    """
    check_compile(compile, _like(model).device)
    low = uses_bfloat16(model, precision)
    try:
        twin = copy.deepcopy(model).eval().requires_grad_(False)
    except Exception as error:  # deepcopy runs the model's own code
        reason = str(error).partition("\n")[0]
        return Surrogate(model, [f"the model itself: it cannot be copied ({reason})."])
    try:
        made = _rewritten(twin, low, fold, fuse, compile)
        if example is not None:
            _check(made, twin, example, LOW_TOLERANCE if low else TOLERANCE)
    except UntraceableError as reason:
        if compile != "off":
            made = surrogate(model, precision=precision, fold=fold, fuse=fuse, example=example)
            made.notes += (f"not compiled: {reason}.",)
            return made
        made = _plain(twin, low, str(reason))
    return made


def _rewritten(twin: nn.Module, low: bool, fold: bool, fuse: bool, how: Compile) -> Surrogate:
    traced = copy.deepcopy(trace(twin))  # its modules are the twin's, which stays a reference
    separable, like = row_by_row(traced), _like(twin)
    views = reshape(traced)
    if low:
        lower(traced)
        like = like.to(torch.bfloat16)
    layers, note = replace(traced, like, fold=fold, fuse=fuse and how == "off")
    tidy(traced)
    kind = f"an evaluation copy in {str(like.dtype).removeprefix('torch.')}, channels-last."
    made = Surrogate(_channels_last(traced), [kind, note] if note else [kind], separable)
    made.layers, made.rewritten, made.any_layout = layers, True, not views
    ours = {id(t) for layer in layers for t in layer.target.buffers()}
    named = ((name.removeprefix("model."), t) for name, t in _tensors(traced).items())
    made.copied = {name: t for name, t in named if id(t) not in ours}
    made.refresh(twin)
    if how != "off":
        made.net = compiled(made.net, how)
        made.notes += (f"compiled: {how}.",)
    return made


def _plain(twin: nn.Module, low: bool, reason: str) -> Surrogate:
    tensors = _tensors(twin)
    made = Surrogate(Autocast(twin) if low else twin, [f"a plain copy: {reason}."])
    made.copied = tensors
    return made


class Autocast(nn.Module):
    """Code that cannot be rewritten chooses its types by torch's own rules."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.net(x)


def _check(made: Surrogate, twin: nn.Module, example: Tensor, tolerance: float) -> None:
    with torch.no_grad():
        z = twin(example)
        try:
            error = float((made(example) - z).abs().max() / z.abs().max().clamp(min=1e-12))
        except Exception as failure:  # of code that takes float32 for granted, say
            reason = str(failure).partition("\n")[0]
            raise UntraceableError(f"its rewritten form fails ({reason})") from None
    if not error <= tolerance:
        raise UntraceableError(
            f"the logits of its rewritten form are off by {error:.2g} of the largest"
        )


def uses_bfloat16(model: nn.Module, precision: Precision) -> bool:
    """What a setting of precision means for this model, where it is."""
    if precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    like = _like(model)
    fast = like.dtype == torch.float32 and has_fast_bfloat16(like.device)
    return precision == "bfloat16" or (precision == "auto" and fast)


def _like(model: nn.Module) -> Tensor:
    """An empty tensor of the model's floating-point type, on its device."""
    floats = (t for t in _tensors(model).values() if t.is_floating_point())
    return next(floats, torch.empty(0)).detach().new_empty(0)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name."""
    parameters = model.named_parameters(remove_duplicate=False)
    return dict(chain(parameters, model.named_buffers(remove_duplicate=False)))


def _channels_last(net: nn.Module) -> nn.Module:
    for tensor in _tensors(net).values():
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return net
