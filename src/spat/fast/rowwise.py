"""The graph of a model, bit for bit: for parts of a batch, several at a time, by several threads.

Its operations are the model's own in their order, without its Python code: that may keep things in
the model on the way, which two threads would mix up. Two things take less memory traffic, to the
same last bit: a ReLU overwrites what nobody else reads, and the gradient of a BatchNorm in eval
mode is two products, where torch also sums up what only its weights would need.

A kernel may choose another order of sums for a part of a batch than for all of it. Whether it does
depends on the shape, not on the numbers: `Exact` compares both once for each shape.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from spat.fast._blocks import run_blocks, split
from spat.fast._graph import NORMS, UntraceableError, called, trace
from spat.fast._rewrite import relu_in_place
from spat.fast._rows import row_by_row
from spat.modes import borrowed, evaluating


class Rowwise(nn.Module):
    """Shares the model's parameters and buffers; gradients are those of the images alone."""

    separable = True

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


def rowwise(model: nn.Module) -> nn.Module:
    """The graph of a model in eval mode that treats each image alone; any other model itself."""
    try:
        traced = trace(model)
    except UntraceableError:
        return model
    if not row_by_row(traced):
        return model
    relu_in_place(traced)
    _freeze_norms(traced)
    traced.recompile()
    return Rowwise(traced)


class Exact:
    """What gives an attack the bits of a model: its graph in parts, where that is so, or itself."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        with evaluating(model):
            self.graph = rowwise(model)
        self.same: dict[tuple[torch.Size, int], bool] = {}

    def on(self, x: Tensor) -> nn.Module:
        """For a batch like x."""
        key = (x.shape, torch.get_num_threads())
        if key not in self.same:
            with borrowed(self.model, x.device):
                whole = _gradient(self.model, x)
                if not whole.any():  # a last layer of zeros, say: nothing is shown
                    return self.model
                self.same[key] = torch.equal(self._in_parts(x), whole)
        return self.graph if self.same[key] else self.model

    def _in_parts(self, x: Tensor) -> Tensor:
        by = split(self.graph, len(x), x.device)
        return run_blocks(lambda rows: _gradient(self.graph, x[rows]), len(x), by)


def _gradient(net: nn.Module, x: Tensor) -> Tensor:
    """Of a loss that takes each image alone."""
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(net(x).square().sum(), x)[0]


def _freeze_norms(traced: fx.GraphModule) -> None:
    for node in traced.graph.nodes:
        layer = called(traced, node)
        if type(layer) in NORMS:
            name = f"{str(node.target).replace('.', '_')}_frozen"
            traced.add_submodule(name, FrozenNorm(layer))
            node.target = name


class FrozenNorm(nn.Module):
    """A BatchNorm in eval mode, for those who ask for the gradient of its input alone."""

    def __init__(self, bn: Any) -> None:
        super().__init__()
        self.bn = bn

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return normalised(x, self.bn)
        out: Tensor = _Frozen.apply(x, self.bn)  # type: ignore[no-untyped-call]
        return out


def normalised(x: Tensor, bn: Any) -> Tensor:
    return F.batch_norm(
        x, bn.running_mean, bn.running_var, bn.weight, bn.bias, training=False, eps=bn.eps
    )


class _Frozen(torch.autograd.Function):
    """1 / sqrt(running_var + eps) is rounded once, from double precision, as torch does it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bn: Any) -> Tensor:
        ctx.bn = bn
        return normalised(x, bn)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        shape = (-1, *(1 for _ in g.shape[2:]))
        spread = (ctx.bn.running_var.double() + ctx.bn.eps).sqrt()
        gradient = g * (1 / spread).to(g.dtype).reshape(shape)
        if ctx.bn.weight is not None:
            gradient.mul_(ctx.bn.weight.detach().reshape(shape))
        return gradient, None
