"""Training passes of several processes, each on its share of the batch, as if they were one.

The inner attack runs on the bare model and needs no other process. The training passes run inside
DistributedDataParallel, which averages the gradients of the weights once a step, while it is still
computing them. Layers that look at the whole batch are helped: dropout draws its mask for all of
it, and BatchNorm's statistics are those of all of it, or at least averaged after the step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel

from spat.defences._base import Crafted, Defence, Progress, Terms
from spat.training.batches import Batch
from spat.training.batchnorm import whole_batch_norm
from spat.world import World


class Response(nn.Module):
    """A defence's training passes as one module, so that DDP sees one forward a step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, defence: Defence, x: Tensor, y: Tensor, crafted: Crafted, progress: Progress
    ) -> Terms:
        return defence.respond(self.model, x, y, crafted, progress)


def response(model: nn.Module, world: World) -> nn.Module:
    """The training passes, their gradients averaged over the processes if there are several."""
    alone = Response(model)
    if world.size == 1:
        return alone
    # Buffers are not broadcast: each step leaves them equal. Newer releases call that otherwise.
    parameters = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    settings: dict[str, Any] = {name: False, "gradient_as_bucket_view": True}  # spares a copy
    return DistributedDataParallel(alone, **settings)


def unreduced(response: nn.Module, yes: bool) -> AbstractContextManager[None]:
    """Leave each process its own gradients for now: more will be added to them."""
    if yes and isinstance(response, DistributedDataParallel):
        quiet: AbstractContextManager[None] = response.no_sync()
        return quiet
    return nullcontext()


@contextmanager
def whole_batch(model: nn.Module, world: World, part: Batch, *, sync: bool) -> Iterator[None]:
    """Let layers that look at the whole batch see it, in the passes of this part of it inside.

    sync: whether BatchNorm sees the other processes' images as well
    """
    if len(part.x) == part.n:
        yield
        return
    sync = sync and world.size > 1
    helped = [(m, seen) for m in model.modules() if (seen := _helped(m, world, part, sync))]
    for module, forward in helped:
        module.forward = forward
    try:
        yield
    finally:
        for module, _ in helped:
            del module.forward


def _helped(
    module: nn.Module, world: World, part: Batch, sync: bool
) -> Callable[[Tensor], Tensor] | None:
    """A forward pass that sees the whole batch, for a layer in training mode that needs one."""
    if not module.training:
        return None
    if isinstance(module, _DropoutNd):
        return partial(_whole_dropout, module.forward, part)
    if isinstance(module, _BatchNorm) and sync:
        return partial(whole_batch_norm, module, world=world)
    return None


def _whole_dropout(forward: Callable[[Tensor], Tensor], part: Batch, x: Tensor) -> Tensor:
    """Dropout of the whole batch, of which x are the part's rows; the generator is the same."""
    layout = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
    whole = torch.zeros((part.n, *x.shape[1:]), dtype=x.dtype, device=x.device)
    whole = whole.contiguous(memory_format=layout)
    places = part.places.to(x.device)
    whole[places] = x
    return forward(whole)[places]


def _is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def average_buffers(model: nn.Module, world: World) -> None:
    """The mean over the processes of each running statistic, all in one message."""
    statistics = [b for b in model.buffers() if b.is_floating_point()]
    for buffer, mean in zip(statistics, world.averaged(lambda: statistics), strict=True):
        buffer.copy_(mean)
