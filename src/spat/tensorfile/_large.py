"""Files of tensors too large for memory: filled in place row by row, read a few rows at a time.

The files are those of `write`: safetensors with the same digest. While one is being filled it lies
beside its name as `.part`; what a killed process leaves there is begun again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from spat.errors import UserError
from spat.tensorfile._whole import altered, sync_folder, title, told

Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # name: type as numpy calls it, shape
KINDS = {"float32": "F32", "int64": "I64", "bool": "BOOL"}
HEADER = 1 << 16  # bytes before the tensors: the header is written last, and must fit in here
CHUNK = 1 << 24  # bytes that are moved or hashed at a time


class Filling:
    """Named arrays on disk, each with its rows first, that become a file of tensors once sealed."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.part = path, path.with_name(path.name + ".part")
        self.layout = {name: (kind, tuple(shape)) for name, (kind, shape) in layout.items()}
        size = HEADER + sum(_size(*spec) for spec in self.layout.values())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.part.open("wb") as file:
                file.truncate(size)
        except OSError as error:
            raise UserError(f"could not write {path}: {error.strerror}.") from None
        self.arrays = self._mapped()

    def seal(self, rows: NDArray[np.int64], meta: Mapping[str, Any]) -> str:
        """Keep these rows, in ascending order; finish the file; returns its digest."""
        for array in self.arrays.values():
            _gather(array, rows)
        self.arrays = {}
        self._close_up(len(rows))
        text = json.dumps(dict(meta), sort_keys=True)
        sha256 = self._digest(text)
        self._write_header({"spat": text, "sha256": sha256})
        self.part.replace(self.path)
        sync_folder(self.path.parent)
        return sha256

    def drop(self) -> None:
        """Leave nothing behind."""
        self.arrays = {}
        self.part.unlink(missing_ok=True)

    def _mapped(self) -> dict[str, NDArray[Any]]:
        return {
            name: np.memmap(self.part, np.dtype(self.layout[name][0]), "r+", start, shape)
            for name, start, shape in self._places()
        }

    def _places(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Where each tensor begins in the file."""
        start = HEADER
        for name, (kind, shape) in self.layout.items():
            yield name, start, shape
            start += _size(kind, shape)

    def _close_up(self, n: int) -> None:
        """Move the tensors together once each has only its first n rows."""
        old = [start for _, start, _ in self._places()]
        self.layout = {name: (kind, (n, *s[1:])) for name, (kind, s) in self.layout.items()}
        end = HEADER
        with self.part.open("r+b") as file:
            for begin, (kind, shape) in zip(old, self.layout.values(), strict=True):
                end = _move(file, begin, end, _size(kind, shape))
            file.truncate(end)

    def _digest(self, text: str) -> str:
        sha, places = hashlib.sha256(text.encode()), {p[0]: p[1] for p in self._places()}
        with self.part.open("rb") as file:
            for name in sorted(self.layout):
                kind, shape = self.layout[name]
                sha.update(title(name, f"torch.{kind}", shape))
                file.seek(places[name])
                for size in _chunks(_size(kind, shape)):
                    sha.update(file.read(size))
        return sha.hexdigest()

    def _write_header(self, meta: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": dict(meta)}
        for name, start, shape in self._places():
            kind = self.layout[name][0]
            ends = [start - HEADER, start - HEADER + _size(kind, shape)]
            header[name] = {"dtype": KINDS[kind], "shape": shape, "data_offsets": ends}
        text = json.dumps(header).encode().ljust(HEADER - 8)
        assert len(text) == HEADER - 8, "the header holds names and settings, never rows"
        with self.part.open("r+b") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.flush()
            os.fsync(file.fileno())


class Rows:
    """An open file of tensors."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file = path, file
        self.header: dict[str, str] = file.metadata() or {}

    @property
    def names(self) -> list[str]:
        return sorted(self.file.keys())

    @property
    def meta(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.header.get("spat", "{}"))
        return found

    @property
    def sha256(self) -> str:
        """The digest that the header claims; `check` compares it with the tensors."""
        return self.header.get("sha256", "")

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.file.get_slice(name).get_shape())

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        found: Tensor = self.file.get_slice(name)[start:stop]
        return found

    def whole(self, name: str) -> Tensor:
        found: Tensor = self.file.get_tensor(name)
        return found

    def check(self) -> None:
        """Refuse a file that changed after it was written."""
        sha = hashlib.sha256(self.header.get("spat", "{}").encode())
        for name in self.names:
            shape = self.shape(name)
            step = max(1, CHUNK // max(1, 8 * math.prod(shape[1:])))
            sha.update(title(name, str(self.rows(name, 0, 0).dtype), shape))
            for start in range(0, shape[0], step):
                rows = self.rows(name, start, start + step)
                sha.update(rows.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        if sha.hexdigest() != self.sha256:
            raise altered(self.path)


@contextmanager
def opened(path: Path) -> Iterator[Rows]:
    """The tensors of a file that `Filling` or `write` made, checked before the first is used."""
    with told(path):
        file = safe_open(path, framework="pt")
    with file:
        rows = Rows(path, file)
        rows.check()
        yield rows


def _size(kind: str, shape: tuple[int, ...]) -> int:
    return np.dtype(kind).itemsize * math.prod(shape)


def _chunks(size: int) -> Iterator[int]:
    for start in range(0, size, CHUNK):
        yield min(CHUNK, size - start)


def _gather(array: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Move these rows to the front; none is written over before it has moved."""
    for place, row in enumerate(rows.tolist()):
        if place != row:
            array[place] = array[row]


def _move(file: Any, begin: int, to: int, size: int) -> int:
    """Copy bytes towards the front of a file; returns where they now end."""
    if begin == to:
        return to + size
    for part in _chunks(size):
        file.seek(begin)
        piece = file.read(part)
        file.seek(to)
        file.write(piece)
        begin, to = begin + part, to + part
    return to
