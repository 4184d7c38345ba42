"""Borrow a model and give it back unchanged, also when an exception passes through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spat import rng


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[None]:
    """Restore each module's own mode: a plain `model.train()` would unfreeze a frozen BatchNorm."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The whole model in eval mode, each module's own mode restored after."""
    with restored_modes(model):
        model.eval()
        yield


@contextmanager
def borrowed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, gradients on, and the global generators given back as they were found.

    Gradients are switched on here because a caller may well sit in `torch.no_grad()`.
    """
    with evaluating(model), rng.preserved(device), torch.enable_grad():
        yield


@contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions in float32 on a GPU too, which by default shortens what it multiplies."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


class Substituted(nn.Module):
    """A model seen with other parameters or buffers, by name; it is not written to.

    A tensor computed from the model's own parameter passes its gradient on to it. Buffers that are
    not replaced are the model's: its BatchNorm statistics are updated by a training pass as usual.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model, self.tensors = model, dict(tensors)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.model, self.tensors, (x,))
        return logits
