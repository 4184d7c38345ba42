"""Build the part of MNIST that comes with the package, from the whole of MNIST.

    python benchmarks/make_mnist_mini.py [--root DATA_FOLDER] [--out FILE]

Every image is stored as its raw bytes, one digit after the other, and the whole is packed by xz.
Measured on the first 1,200 training images of each digit, in bytes an image: xz of raw bytes by
digit 134.7, in file order 136.5, columns first 137.5, pixels first 152.0, differences of rows
176.6; bzip2 139.9; deflate 160.6 (and PNG is deflate). So 18,000 images stay below 2.5 MB.
"""

from __future__ import annotations

import argparse
import lzma
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from spat.datasets import mnist_mini
from spat.datasets._images import Images
from spat.datasets.mnist import Mnist

HOME = Path(mnist_mini.__file__).parent / mnist_mini.FILE
# pb=0 and lc=4: bytes have no alignment of four, and the last pixel predicts the next best.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0, "lc": 4}]


def spread(images: Images, digit: int, n: int) -> Tensor:
    """`n` images of a digit, evenly spread over the file."""
    members = torch.nonzero(images.y == digit)[:, 0]
    return images.x[members[torch.arange(n) * len(members) // n]]


def chosen(train: Images, test: Images) -> bytes:
    """The pixels of the embedded images: each digit's training, then its test images."""
    parts = [
        spread(half, digit, n)
        for digit in range(mnist_mini.CLASSES)
        for half, n in ((train, mnist_mini.TRAIN), (test, mnist_mini.TEST))
    ]
    return torch.cat(parts).numpy().tobytes()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", help="the data folder that holds MNIST")
    parser.add_argument("--out", type=Path, default=HOME, help="the file to write")
    given = parser.parse_args(arguments)
    pixels = chosen(*Mnist(root=given.root).whole())
    data = lzma.compress(pixels, format=lzma.FORMAT_XZ, filters=FILTERS)
    given.out.write_bytes(data)
    print(f"{given.out}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
