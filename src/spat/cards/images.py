"""The adversarial images of an evaluation on disk, in the order of the test set.

For each image the file holds the one that broke it, by the first attack in order that did; where
none did, the last attempt; and the clean image where that is misclassified already. Everything is
float32, exactly as the model saw it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from spat.errors import UserError
from spat.records import Bools, Ints, Outcomes
from spat.tensorfile import Filling

NOBODY = -1  # in the column `attack`: the clean image
COPIED = 256  # images at a time


def own_column(label: str) -> str:
    """Where the images of one attack lie, if each attack's are kept."""
    return f"x_adv: {label}"


class Gallery:
    """Filled by `keep` while attacks run; the file has its name only once it is sealed."""

    def __init__(
        self,
        path: Path,
        x: Tensor,
        y: Tensor,
        labels: Sequence[str],
        *,
        each: bool = False,
    ) -> None:
        self.labels, self.each = list(labels), each
        n, shape = len(x), tuple(x.shape)
        columns = ("ids", "labels", "clean", "predicted", "attack")
        layout: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(columns, ("int64", (n,)))
        layout |= {"broken": ("bool", (n,)), "x_adv": ("float32", shape)}
        layout |= {own_column(label): ("float32", shape) for label in (labels if each else ())}
        self.filling = Filling(path, layout)
        self._begin(x, y)

    def _begin(self, x: Tensor, y: Tensor) -> None:
        arrays = self.filling.arrays
        arrays["ids"][:] = np.arange(len(x))
        arrays["labels"][:] = y.cpu().numpy()
        arrays["attack"][:] = NOBODY
        for start in range(0, len(x), COPIED):
            rows = slice(start, start + COPIED)
            for name, array in arrays.items():
                if name.startswith("x_adv"):
                    array[rows] = x[rows].float().cpu().numpy()

    def keep(self, label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        """Store what an attack found, unless an attack before it broke the image already."""
        arrays, rows = self.filling.arrays, index.cpu().numpy()
        images, seen = x_adv.detach().float().cpu().numpy(), predicted.cpu().numpy()
        if self.each:
            arrays[own_column(label)][rows] = images
        free = ~arrays["broken"][rows]
        rows, images, seen = rows[free], images[free], seen[free]
        arrays["x_adv"][rows] = images
        arrays["predicted"][rows] = seen
        arrays["attack"][rows] = self.labels.index(label)
        arrays["broken"][rows] = seen != arrays["labels"][rows]

    def seal(self, outcomes: Outcomes, meta: Mapping[str, Any]) -> str:
        """Finish the file with the images that the outcomes speak of; returns its digest."""
        order = np.argsort(outcomes.ids)
        rows: Ints = outcomes.ids[order]
        self._check((outcomes.correct & ~outcomes.worst)[order], rows)
        arrays, clean = self.filling.arrays, outcomes.clean[order]
        arrays["clean"][rows] = clean
        untouched = arrays["attack"][rows] == NOBODY
        arrays["predicted"][rows[untouched]] = clean[untouched]
        return self.filling.seal(rows, {**meta, "attacks": self.labels})

    def _check(self, broken: Bools, rows: Ints) -> None:
        """A file that lacks an image of a break would look whole and prove less than it says."""
        lost = int((broken & ~self.filling.arrays["broken"][rows]).sum())
        if lost:
            self.filling.drop()
            raise UserError(
                f"{self.filling.path} was not written: the images of {lost} breaks were not "
                "handed over while the attacks ran; evaluate anew."
            )
