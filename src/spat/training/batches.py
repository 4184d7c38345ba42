"""Which images a step trains on, and which of them this process holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from spat.datasets import Images, crop_flip, shrunk
from spat.rng import PerExample, derive, generator
from spat.world import World


@dataclass(frozen=True)
class Batch:
    """A share or a part of a batch: images, labels, their places in the whole, its size."""

    x: Tensor
    y: Tensor
    places: Tensor
    n: int

    def augmented(self, *names: int | str) -> Batch:
        """Cropped and mirrored, each image as the whole batch's draws have it."""
        drawn = crop_flip(self.x, generator(*names), among=(self.places, self.n))
        return replace(self, x=drawn)

    def scaled(self, scale: float) -> Batch:
        """Of images whose sides are this share of what they were."""
        return self if scale == 1 else replace(self, x=shrunk(self.x, scale))

    def parts(self, count: int) -> list[Batch]:
        """This in so many parts of nearly equal size."""
        if count == 1:
            return [self]
        pieces = (t.tensor_split(count) for t in (self.x, self.y, self.places))
        return [Batch(x, y, places, self.n) for x, y, places in zip(*pieces, strict=True)]

    def source(self, *names: int | str) -> PerExample:
        """Random numbers for each image, whichever process holds it."""
        return PerExample(derive(*names), self.places)


def batch_at(
    images: Images, batches: int, position: int, *, seed: int, epoch: int, world: World
) -> Batch:
    """One of the `batches` of an epoch. They differ by at most one image: no short one upsets
    BatchNorm, and together they hold every image once.
    """
    index = torch.tensor_split(_order(len(images), seed, epoch), batches)[position]
    x, y = images.floats(world.mine(index))
    return Batch(x, y, world.mine(torch.arange(len(index))), len(index))


@lru_cache(maxsize=1)
def _order(n: int, seed: int, epoch: int) -> Tensor:
    """Drawn once an epoch: of a million images it would cost a part of each step."""
    return torch.randperm(n, generator=generator(seed, "order", epoch))


def alone(x: Tensor, y: Tensor) -> Batch:
    """A whole batch that this process has to itself."""
    return Batch(x, y, torch.arange(len(x)), len(x))
