"""What every architecture is told: the shape of the task, the head, and how wide to be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from spat.errors import UserError
from spat.models._heads import make_head

Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

NARROWEST = 8  # channels: below this, batch normalisation and ReLU leave almost nothing
HELP = {
    "classes": "number of labels",
    "channels": "1 for grey images, 3 for colour",
    "head": "linear, or cosine (unit features times unit class rows)",
    "head_bias": "whether a cosine head has a bias; a linear one always has",
    "scale": "the scale s that a cosine head is trained with; stored, not applied",
    "size": "height and width of the images, in pixels",
    "width": f"multiplies every number of channels; none falls below {NARROWEST}",
}


def documented(factory: Factory) -> Factory:
    """Add the help of the settings that architectures share to a factory's docstring."""
    taken = inspect.signature(factory).parameters
    lines = [f"    {name}: {text}" for name, text in HELP.items() if name in taken]
    factory.__doc__ = "\n".join([factory.__doc__ or "", *lines])
    return factory


@dataclass(frozen=True)
class Plan:
    """The settings that all architectures share, checked."""

    classes: int
    channels: int
    head: str
    head_bias: bool
    scale: float
    width: float = 1.0

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise UserError(
                f"channels must be at least 1, got {self.channels}; "
                "use 1 for grey images, 3 for colour."
            )
        if not 0 < self.width < math.inf:
            raise UserError(
                f"width must be a positive number, got {self.width}; 1 is the published width."
            )

    def wide(self, channels: int) -> int:
        """A published number of channels, times `width`."""
        return max(NARROWEST, round(channels * self.width))

    def make_head(self, features: int) -> nn.Linear:
        return make_head(self.head, features, self.classes, bias=self.head_bias, scale=self.scale)


def check_size(model: str, size: int, smallest: int) -> None:
    """Images must survive the pooling of a network whose last layers are fully connected."""
    if size < smallest:
        raise UserError(
            f"size of {model} must be at least {smallest} pixels, got {size}; "
            "resnet18 takes images of any size."
        )
