"""The states of an evaluation in a folder: files of tensors, one for each attack on each wave.

Of an attack that is over there is the last state, with the images it found; of the one under way
there are two, so that a damaged one costs an interval and not the attack. Each file is whole or not
there, has a checksum, and says which evaluation it is of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spat import tensorfile
from spat.errors import UserError
from spat.evaluation._fingerprint import Fingerprint, difference
from spat.folder import locked
from spat.interval import Interval

OVER = "-over"
Place = tuple[int, int]  # the wave and the attack, counted from 0


class Saved(NamedTuple):
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Store:
    """Where states go; this one, for an evaluation that nobody wants to go on with, nowhere."""

    def find(self, place: Place) -> Saved | None:
        """The newest whole state of an attack on a wave."""
        return None

    def has(self, wave: int) -> bool:
        """Whether a wave was begun."""
        return False

    def is_due(self) -> bool:
        return False

    def save(
        self, place: Place, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, is_over: bool
    ) -> None:
        """Whole or not at all; what it makes superfluous goes after it is there."""


@dataclass
class Folder(Store):
    """A store on disk.

    own: what the evaluation is of
    tell: told of files that are not whole, one sentence each
    """

    path: Path
    own: Fingerprint
    every: Interval
    tell: Callable[[str], None]
    tried: float = field(default_factory=time.monotonic)
    pauses: int = 0

    def find(self, place: Place) -> Saved | None:
        problems: list[str] = []
        found = None
        for path in reversed(self._paths(place)):
            try:
                found = Saved(*tensorfile.read(path))
            except UserError as error:
                problems.append(str(error))
                continue
            self._refuse_others(path, found.meta)
            break
        for problem in problems:
            then = "goes on from the state before it" if found else "is begun again"
            self.tell(f"{problem} The attack {then}.")
        return found and Saved(_laid_out(found), found.meta)

    def has(self, wave: int) -> bool:
        return bool(self._paths((wave, 0)))

    def is_due(self) -> bool:
        """Asked wherever a state could be saved."""
        self.pauses += 1
        waited = time.monotonic() - self.tried
        return self.every.is_over(seconds=waited, steps=self.pauses)

    def save(
        self, place: Place, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, is_over: bool
    ) -> None:
        self.tried, self.pauses = time.monotonic(), 0
        before = self._paths(place)
        number = _number(before[-1]) + 1 if before else 0
        name = f"{_name(place)}-{number:06d}{OVER if is_over else ''}.safetensors"
        whole = {**meta, "fingerprint": dict(self.own), "strides": _strides(tensors)}
        tensorfile.write(self.path / name, tensors, whole)
        earlier = [path for path in self._paths() if path.name < _name(place)]
        for other in (*before[:-1], *(path for path in earlier if OVER not in path.name)):
            other.unlink(missing_ok=True)

    def _paths(self, place: Place | None = None) -> list[Path]:
        """Of an attack on a wave, or of all, in the order in which they come."""
        name = "" if place is None else _name(place)
        return sorted(self.path.glob(f"{name}*.safetensors"))

    def _refuse_others(self, path: Path, meta: Mapping[str, Any]) -> None:
        other = difference(meta.get("fingerprint", {}), self.own)
        if other:
            raise UserError(
                f"{path.parent} holds the state of another evaluation, of {other}: "
                "go on with that one, or remove the folder."
            )


@contextmanager
def opened(
    path: Path | str | None,
    own: Callable[[], Fingerprint],
    every: Interval,
    tell: Callable[[str], None],
) -> Iterator[Store]:
    """The store in a folder, which is nobody else's meanwhile; without one, no store."""
    if path is None:
        yield Store()
        return
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"could not make the folder {path}: {error.strerror}.") from None
    with locked(path):
        for leftover in path.glob("*.part"):
            leftover.unlink(missing_ok=True)
        yield Folder(path, own(), every, tell)


def _name(place: Place) -> str:
    return f"wave-{place[0]:05d}-attack-{place[1]:03d}"


def _number(path: Path) -> int:
    """Of a state among those of its attack and wave."""
    return int(path.stem.removesuffix(OVER).rpartition("-")[2])


def _strides(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """How tensors lie in memory that do not lie row by row: by it sums may round otherwise."""
    layouts = {name: torch.empty_like(t, device="meta").stride() for name, t in tensors.items()}
    plain = {name: torch.empty(t.shape, device="meta").stride() for name, t in tensors.items()}
    return {name: list(own) for name, own in layouts.items() if own != plain[name]}


def _laid_out(saved: Saved) -> dict[str, Tensor]:
    strides = saved.meta["strides"]
    return {
        name: torch.empty_strided(t.shape, strides[name], dtype=t.dtype).copy_(t)
        if name in strides
        else t
        for name, t in saved.tensors.items()
    }
