"""Images with their labels, as bytes wherever they come as such; splits of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spat.contracts import check_images
from spat.errors import UserError
from spat.rng import generator


@dataclass(frozen=True, eq=False)
class Images:
    """`x` uint8, or float32 in [0, 1], [n, c, h, w]; `y` int64 [n]; `names[y]` is the class."""

    x: Tensor
    y: Tensor
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_pixels(self.x)
        if len(self.names) < 2:
            listed = ", ".join(map(repr, self.names)) or "none"
            raise UserError(f"a data set needs at least two classes, got {listed}.")
        _check_labels(self.y, len(self.x), len(self.names))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor | slice) -> Images:
        at = index.to(self.x.device) if isinstance(index, Tensor) else index
        return replace(self, x=self.x[at], y=self.y[at])

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    def to(self, device: torch.device | str) -> Images:
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def floats(self, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Float32 images in [0, 1] and labels; of the images at `index`, in its order."""
        if index is None:
            x, y = self.x, self.y
        else:  # not through self[index], which would check every batch again
            at = index.to(self.x.device)
            x, y = self.x[at], self.y[at]
        if x.dtype == torch.uint8:
            return x.to(torch.float32).div_(255), y
        return (x.clone() if index is None else x), y


@dataclass(frozen=True, eq=False)
class Splits:
    """What a data set hands over; `eps` is the field's usual Linf budget, None where it has none.

    `augment` says whether random crops and flips keep an image of its class.
    """

    train: Images
    validation: Images | None
    test: Images
    name: str
    eps: float | None = None
    augment: bool = False

    def __post_init__(self) -> None:
        for role, part in (("validation", self.validation), ("test", self.test)):
            if part is None:
                continue
            if part.shape != self.train.shape:
                raise UserError(
                    f"training images are {_sides(self.train)} but {role} images are "
                    f"{_sides(part)}; all must have one shape."
                )
            if part.names != self.train.names:
                raise UserError(f"training and {role} images must have the same class names.")
        present = torch.bincount(self.train.y).nonzero()[:, 0].tolist()
        if len(present) < 2:
            only = self.train.names[present[0]]
            raise UserError(
                f"a data set needs at least two classes, all training images are {only!r}."
            )

    def to(self, device: torch.device | str) -> Splits:
        held = None if self.validation is None else self.validation.to(device)
        return replace(
            self, train=self.train.to(device), validation=held, test=self.test.to(device)
        )


def carve(images: Images, fraction: float, seed: int) -> tuple[Images, Images]:
    """Training and validation images: disjoint, the same share of every class in each.

    A class of two or more images is in both; the rest keep their order.
    """
    if not 0 < fraction < 1:
        raise UserError(
            f"validation must be a share of the training images between 0 and 1, got {fraction:g}; "
            "0.02 of CIFAR-10 is 1,000 images."
        )
    rng = generator(seed, "validation")
    labels = images.y.cpu()
    held = torch.zeros(len(images), dtype=torch.bool)
    for label in range(images.classes):
        members = torch.nonzero(labels == label)[:, 0]
        order = torch.randperm(len(members), generator=rng)
        held[members[order[: _share(len(members), fraction)]]] = True
    if not held.any():
        raise UserError("no class has two training images, so none can be held out for validation.")
    return images[torch.nonzero(~held)[:, 0]], images[torch.nonzero(held)[:, 0]]


def split(
    train: Images,
    test: Images,
    *,
    validation: float,
    seed: int,
    name: str,
    eps: float | None = None,
    augment: bool = False,
) -> Splits:
    """The splits of a whole training and a whole test set; validation (if any) of the former."""
    kept, held = (train, None) if validation == 0 else carve(train, validation, seed)
    return Splits(kept, held, test, name, eps, augment)


def _share(members: int, fraction: float) -> int:
    if members < 2:
        return 0
    return min(max(round(members * fraction), 1), members - 1)


def _sides(images: Images) -> str:
    return "x".join(map(str, images.shape))


def _check_pixels(x: Tensor) -> None:
    if x.dtype not in (torch.uint8, torch.float32) or x.ndim != 4:
        kind = str(x.dtype).removeprefix("torch.")
        raise UserError(
            "images must be uint8, or float32 in [0, 1], of shape [n, channels, height, width], "
            f"got {kind} {tuple(x.shape)}."
        )
    if x.numel() == 0:
        raise UserError(f"a data set needs at least one image, got shape {tuple(x.shape)}.")
    if x.dtype == torch.float32:
        check_images(x)


def _check_labels(y: Tensor, images: int, classes: int) -> None:
    if y.dtype != torch.int64 or y.ndim != 1:
        kind = str(y.dtype).removeprefix("torch.")
        raise UserError(f"labels must be int64 [n], got {kind} {tuple(y.shape)}.")
    if len(y) != images:
        raise UserError(f"there must be one label an image, got {len(y)} for {images} images.")
    low, high = (int(v) for v in y.aminmax())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise UserError(f"labels must lie in 0 to {classes - 1}, got {wrong}.")
