"""Every published form of CIFAR-10 as the records of its binary version.

A record is one label byte, then 3,072 bytes: the red, the green and the blue plane.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from spat.datasets._inert_pickle import read_batch
from spat.errors import UserError

CHANNELS, SIDE = 3, 32
PIXELS = CHANNELS * SIDE * SIDE


def decode(data: bytes, file: str) -> tuple[Tensor, Tensor]:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n] of a binary batch."""
    record = PIXELS + 1
    if not data or len(data) % record:
        raise UserError(
            f"{file} is truncated or not a CIFAR-10 batch: its length must be a multiple of "
            f"{record:,} bytes, got {len(data):,}."
        )
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, record)
    return rows[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), rows[:, 0].to(torch.int64)


def from_pickle(data: bytes) -> bytes:
    """The binary form of a batch of the python version, which has the planes in the same order."""
    return _records(*read_batch(data))


def from_png(data: bytes, labels: Sequence[int]) -> bytes:
    """The binary form of a picture whose every row is one image, pixel after pixel."""
    with Image.open(io.BytesIO(data)) as picture:
        rows = np.asarray(picture)
    if rows.dtype != np.uint8 or rows.shape != (len(labels), SIDE * SIDE, CHANNELS):
        raise ValueError(f"a picture of {len(labels)} images has the shape {rows.shape}")
    return _records(rows.transpose(0, 2, 1).reshape(len(labels), PIXELS), labels)


def _records(rows: NDArray[np.uint8], labels: Sequence[int]) -> bytes:
    return np.column_stack([np.asarray(labels, np.uint8), rows]).tobytes()
