"""A model that can be given a batch in parts, several at a time, by several threads."""

from __future__ import annotations

from torch import Tensor, nn

from spat.fast._graph import UntraceableError, trace
from spat.fast._rows import row_by_row


class Rowwise(nn.Module):
    """The graph of a model: its own operations in their order, without its Python code.

    That code may keep things in the model on the way, which two threads would mix up.
    """

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
    return Rowwise(traced) if row_by_row(traced) else model
