"""What torch can make of a copy besides: compiled code, or recorded launches on a GPU.

A GPU finishes the layers of a small model sooner than Python can ask for them. CUDA graphs record
all launches of a forward and a backward pass once, and play them back in one call.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spat.errors import UserError, unknown

Compile = Literal["off", "inductor", "cuda-graphs"]
MOST = 8  # graphs; each holds the activations of its batch


def check_compile(how: str, device: torch.device) -> None:
    if how not in get_args(Compile):
        raise unknown("compile", how, get_args(Compile))
    if how == "cuda-graphs" and device.type != "cuda":
        raise UserError(
            f"cuda-graphs need a GPU, and the model is on {device.type}: set compile to inductor "
            "or off."
        )


def compiled(net: nn.Module, how: Compile) -> nn.Module:
    if how == "inductor":
        made: nn.Module = torch.compile(net, dynamic=False)  # type: ignore[assignment]
        return made
    return Captured(net) if how == "cuda-graphs" else net


class Captured(nn.Module):
    """Gradient passes of `net` as CUDA graphs, one for each shape of images; others as they are."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.graphs: dict[object, Any] = {}

    def forward(self, x: Tensor) -> Any:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.net(x)
        key = (x.shape, x.dtype)
        if key not in self.graphs and len(self.graphs) < MOST:
            self.graphs[key] = self._record(x)
        if key not in self.graphs:
            return self.net(x)
        return self.graphs[key](_Kept.apply(x)).clone()  # type: ignore[no-untyped-call]

    def _record(self, x: Tensor) -> Any:
        sample = x.detach().clone().requires_grad_()
        return torch.cuda.make_graphed_callables(lambda images: self.net(images), (sample,))


class _Kept(torch.autograd.Function):
    """The images; their gradient is copied out of the graph, which writes the next one there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()
