"""What every data set answers to, and how a fetch tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spat.datasets._images import Splits


class Dataset(Protocol):
    """Frozen settings that can load images."""

    def load(self, *, validation: float = 0.1, seed: int = 0) -> Splits:
        """The splits; `validation` is the share of the training images held out for choosing."""
        ...


@dataclass(frozen=True)
class Step:
    """Progress of a fetch: a line to show or, where `done` is given, the state of a bar."""

    text: str
    done: int | None = None
    total: int | None = None


Report = Callable[[Step], None]


def unheard(step: Step) -> None:
    """The report of a fetch that nobody watches."""
