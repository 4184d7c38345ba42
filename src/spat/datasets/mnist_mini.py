"""A balanced part of MNIST that comes with the package, so that a first run needs no network.

Of each digit it holds 1,500 of the training and 300 of the test images. Image k of n of a digit is
the one at position `k * available // n` among that digit's images in the official order: spread
over the whole file, as the first half of MNIST's test set is easier than the second.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from importlib import resources

import torch
from torch import Tensor

from spat.datasets._images import Images, Splits, split

FILE = "files/mnist_mini.xz"
CLASSES, SIDE = 10, 28
TRAIN, TEST = 1500, 300  # images a digit
EPS = 0.3  # as for the whole of MNIST


@dataclass(frozen=True)
class MnistMini:
    """Handwritten digits, 15,000 training and 3,000 test images of MNIST, within the package."""

    def load(self, *, validation: float = 0.1, seed: int = 0) -> Splits:
        train, test = self.whole()
        return split(train, test, validation=validation, seed=seed, name="mnist-mini", eps=EPS)

    def whole(self) -> tuple[Images, Images]:
        """The training and the test images."""
        packed = resources.files("spat.datasets").joinpath(FILE).read_bytes()
        stored = torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.uint8)
        by_digit = stored.view(CLASSES, TRAIN + TEST, SIDE, SIDE)
        return _in_turn(by_digit[:, :TRAIN]), _in_turn(by_digit[:, TRAIN:])


def _in_turn(by_digit: Tensor) -> Images:
    """Images 0, 1, ..., 9, 0, 1, ...: stored by digit (which packs best), any head is balanced."""
    each = by_digit.shape[1]
    x = by_digit.transpose(0, 1).reshape(CLASSES * each, 1, SIDE, SIDE)
    names = tuple(str(digit) for digit in range(CLASSES))
    return Images(x.clone(), torch.arange(CLASSES).repeat(each), names)
