"""Your own images in folders named after their classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spat.datasets._images import Images, Splits, split
from spat.errors import UserError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


@dataclass(frozen=True)
class Folder:
    """Your own images as files: path/train/CLASS/*.png and path/test/CLASS/*.png.

    Images may be of any common format, and must be of one size unless `size` is given.

        path: the folder that holds `train` and `test`
        size: resize every image to this many pixels a side
        grayscale: one grey channel in place of red, green and blue
        augment: whether a shifted and mirrored image is still of its class
    """

    path: str
    size: int | None = None
    grayscale: bool = False
    augment: bool = False

    def load(self, *, validation: float = 0.1, seed: int = 0) -> Splits:
        if self.size is not None and self.size < 1:
            raise UserError(f"size must be 1 or more pixels, got {self.size}.")
        root = Path(self.path).expanduser()
        names = _classes(root / "train")
        unseen = sorted(set(_classes(root / "test")) - set(names))
        if unseen:
            raise UserError(f"{root / 'test'} has the class {unseen[0]!r}, which 'train' lacks.")
        train, test = (self._read(root / half, names) for half in ("train", "test"))
        return split(
            train, test, validation=validation, seed=seed, name=root.name, augment=self.augment
        )

    def _read(self, half: Path, names: tuple[str, ...]) -> Images:
        paths, labels = _listed(half, names)
        if not paths:
            raise UserError(
                f"{half} holds no images; each needs a place like {half / names[0] / '1.png'}."
            )
        pixels = [self._pixels(path) for path in paths]
        for path, image in zip(paths, pixels, strict=True):
            if image.shape != pixels[0].shape:
                raise UserError(
                    f"{path} has {_sides(image)} pixels but {paths[0]} has {_sides(pixels[0])}; "
                    f"give size={min(image.shape[1:])} to resize them all."
                )
        return Images(torch.stack(pixels), torch.tensor(labels), names)

    def _pixels(self, path: Path) -> Tensor:
        """Bytes [c, h, w] of one file."""
        try:
            with Image.open(path) as image:
                if image.mode.startswith(("I", "F")):
                    raise UserError(f"{path} has more than 8 bits a channel; convert it first.")
                plain = image.convert("L" if self.grayscale else "RGB")
        except UserError:
            raise
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"{path} is not a readable image; mend or remove it.") from error
        if self.size is not None:
            plain = plain.resize((self.size, self.size), Image.Resampling.BILINEAR)
        array = np.array(plain, dtype=np.uint8)
        channels = array[None] if self.grayscale else array.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(channels))


def _classes(half: Path) -> tuple[str, ...]:
    if not half.is_dir():
        raise UserError(f"{half} is not a folder; images belong in {half / 'CLASS' / '1.png'}.")
    names = sorted(p.name for p in half.iterdir() if p.is_dir() and p.name[0] != ".")
    if not names:
        raise UserError(
            f"{half} holds no class folders; images belong in {half / 'CLASS' / '1.png'}."
        )
    return tuple(names)


def _listed(half: Path, names: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """Files and labels, the classes in turn, so that any head of a data set is balanced."""
    found = [
        (position, label, path)
        for label, name in enumerate(names)
        for position, path in enumerate(_image_files(half / name))
    ]
    found.sort(key=lambda item: item[:2])
    return [path for _, _, path in found], [label for _, label, _ in found]


def _image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    files = (p for p in folder.iterdir() if p.suffix.lower() in ENDINGS and p.name[0] != ".")
    return sorted(files)


def _sides(image: Tensor) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"
