"""Your own images from one file of numpy arrays."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spat.datasets._images import Images, Splits, split
from spat.errors import UserError

CHANNELS = (1, 3)
Array = NDArray[Any]


@dataclass(frozen=True)
class Npz:
    """Your own images from an .npz file with the arrays x_train, y_train, x_test and y_test.

    Images are [n, height, width], or with 1 or 3 channels in last or second place; bytes, or floats
    in [0, 1], which are rounded to the nearest of 256 levels. Labels are integers from 0.

        path: the .npz file
        augment: whether a shifted and mirrored image is still of its class
    """

    path: str
    augment: bool = False

    def load(self, *, validation: float = 0.1, seed: int = 0) -> Splits:
        path = Path(self.path).expanduser()
        held = _arrays(path)
        classes = 1 + max(int(_labels(held, half).max()) for half in ("train", "test"))
        names = tuple(str(label) for label in range(classes))
        train, test = (
            Images(_pixels(f"x_{half}", held[f"x_{half}"]), _labels(held, half), names)
            for half in ("train", "test")
        )
        return split(
            train, test, validation=validation, seed=seed, name=path.stem, augment=self.augment
        )


def _arrays(path: Path) -> dict[str, Array]:
    """The four arrays; never unpickles, as that could run code from the file."""
    wanted = ("x_train", "y_train", "x_test", "y_test")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            held = {name: archive[name] for name in wanted if name in archive.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "it is not an .npz file of plain arrays"
        raise UserError(f"cannot read {path}: {reason}.") from error
    missing = [name for name in wanted if name not in held]
    if missing:
        raise UserError(f"{path} has no array {missing[0]!r}; it needs {', '.join(wanted)}.")
    empty = [name for name in wanted if held[name].size == 0]
    if empty:
        raise UserError(f"{empty[0]} in {path} is empty; a data set needs at least one image.")
    return held


def _labels(held: dict[str, Array], half: str) -> Tensor:
    """Labels [n]; [n, 1], as some toolkits write them, is the same."""
    name, images = f"y_{half}", len(held[f"x_{half}"])
    labels = held[name]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise UserError(f"{name} must be integers [n], got {labels.dtype} {held[name].shape}.")
    if len(labels) != images:
        raise UserError(f"{name} must have one label an image, got {len(labels)} for {images}.")
    if int(labels.min()) < 0:
        raise UserError(f"{name} must be classes counted from 0, got {int(labels.min())}.")
    return torch.from_numpy(labels.astype(np.int64))


def _pixels(name: str, images: Array) -> Tensor:
    """Bytes [n, c, h, w]."""
    if images.dtype.kind == "f":
        _check_unit(name, images)
        images = np.rint(images * 255).astype(np.uint8)
    if images.dtype != np.uint8:
        raise UserError(f"{name} must be bytes or floats in [0, 1], got {images.dtype}.")
    return torch.from_numpy(np.ascontiguousarray(_channels_second(name, images)))


def _check_unit(name: str, images: Array) -> None:
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 1.0):  # also false for NaN
        raise UserError(
            f"{name} must lie in [0, 1], got values in [{low:.4g}, {high:.4g}]; "
            "undo any normalisation, or store bytes."
        )


def _channels_second(name: str, images: Array) -> Array:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4:
        second, last = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
        if second and not last:
            return images
        if images.shape[1:] == (1, 1, 1):  # whichever place is meant
            return images
        if last and not second:
            return images.transpose(0, 3, 1, 2)
    raise UserError(
        f"{name} must be [n, height, width], or have 1 or 3 channels in either last or second "
        f"place, got {images.shape}."
    )
