"""A run of a few steps that knows all that training knows, for the tests of the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional
from spat.config import Training
from spat.datasets import Images
from spat.training.loop import Trainer

QUICK = {"epochs": 2, "batch_size": 16, "lr": 0.05, "validation_images": 8, "schedule": "one-cycle"}


def toy(n: int = 50, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images whose class shows in the mean of a channel: learnable in a few steps."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=rng)
    x = 0.3 * torch.rand(n, 2, 8, 8, generator=rng)
    x[:, 0] += 0.15 * y[:, None, None]
    x[:, 1] += 0.15 * (3 - y[:, None, None])
    return (x * 255).round().to(torch.uint8), y


def trainer(folder: Path | None = None, **settings: Any) -> Trainer:
    x, y = toy()
    images = Images(x, y, ("a", "b", "c", "d"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Convolutional()
    return Trainer(
        model,
        images,
        images[:8],
        spat.defence("madry", **{"attack.steps": 2}),
        Training(**{**QUICK, **settings}),
        augment=True,
        folder=folder,
    )


def states(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
