"""Borrow a model and give it back unchanged, also when an exception passes through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

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
