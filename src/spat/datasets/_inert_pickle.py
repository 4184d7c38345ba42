"""Read a pickled CIFAR batch without running any code that it names.

A pickle may name any function and have it called. Here the few names that the official batches
contain stand for inert values of this file, and every other name is refused; numpy itself is
never called on what the file says.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RefusedError(ValueError):
    """The pickle is not a plain dict of arrays, lists, numbers and text."""


class _Kind:
    """Stands for `numpy.dtype`: remembers the name of a type."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: nothing that matters for bytes."""


class _Array:
    """Stands for `numpy.ndarray`: remembers its pickled state."""

    state: Any = ()

    def __setstate__(self, state: object) -> None:
        self.state = state


def _rebuild(*_: object) -> _Array:
    return _Array()


def _encode(text: object, codec: object = "latin1") -> bytes:
    """Stands for `_codecs.encode`, with which Python 3 writes bytes in the old protocol."""
    if not isinstance(text, str) or codec not in ("latin1", b"latin1"):
        raise RefusedError(f"it encodes with {codec!r}")
    return text.encode("latin1")


STAND_INS = {
    ("numpy", "dtype"): _Kind,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _rebuild,
    ("numpy._core.multiarray", "_reconstruct"): _rebuild,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise RefusedError(f"it names {module}.{name}, which is not plain data")
        return STAND_INS[module, name]


def read_batch(data: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """The images [n, bytes an image] and labels of a CIFAR-10 batch pickled by Python 2 or 3."""
    try:
        held = _Reader(io.BytesIO(data), encoding="bytes").load()
    except RefusedError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise RefusedError(f"it is damaged ({type(error).__name__})") from error
    if not isinstance(held, dict):
        raise RefusedError("it holds no dict")
    named = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in held.items()}
    labels = named.get("labels")
    if not isinstance(labels, list) or not all(
        isinstance(label, int) and 0 <= label < 256 for label in labels
    ):
        raise RefusedError("it has no list of labels")
    return _pixels(named.get("data"), len(labels)), labels


def _pixels(array: object, n: int) -> NDArray[np.uint8]:
    """The bytes of a pickled array: its state is version, shape, type, column order, bytes."""
    match getattr(array, "state", None):
        case (_, (int(rows), int(width)), _Kind(code="u1"), False | 0, bytes(raw)) if (
            rows == n and len(raw) == rows * width
        ):
            return np.frombuffer(raw, np.uint8).reshape(rows, width)
    raise RefusedError(f"its data are not an array of bytes of {n} rows")
