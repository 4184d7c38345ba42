"""The one way to a model: by the name of an architecture, or by where your own is defined."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from spat import catalog
from spat.models._own import build_own, find_own
from spat.rng import global_seed, preserved

CPU = torch.device("cpu")


def build_model(name: str, *, seed: int = 0, **settings: Any) -> nn.Module:
    """A model whose weights are a function of the seed; the global generator is not touched.

    `name` is an architecture (`resnet18`, `wrn-34-10`) or your own (`package.module:factory`,
    `path/to/file.py:factory`), which is given those of the settings that it accepts.
    """
    if ":" not in name:
        with global_seed(CPU, seed, "init"):
            return cast(nn.Module, catalog.build("model", name, **settings))
    with preserved(CPU):  # a first import may draw numbers, a second one does not
        factory = find_own(name)
    with global_seed(CPU, seed, "init"):
        return build_own(name, factory, settings)
