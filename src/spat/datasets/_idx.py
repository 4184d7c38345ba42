"""The idx format of MNIST: a magic number, big-endian sizes, then the bytes."""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from spat.errors import UserError

UNSIGNED_BYTES = 8  # the idx code of the element type; MNIST has no other


def decode(data: bytes, file: str, dimensions: int) -> Tensor:
    """The uint8 tensor in an idx file of so many dimensions."""
    expected = bytes((0, 0, UNSIGNED_BYTES, dimensions))
    if data[:4] != expected:
        raise UserError(
            f"{file} is not an idx file of {dimensions} dimensions: it must start with the bytes "
            f"{expected.hex()}, got {data[:4].hex() or 'nothing'}."
        )
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise UserError(f"{file} is truncated: it ends inside its header.")
    sizes = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) != start + math.prod(sizes):
        state = "truncated" if len(data) < start + math.prod(sizes) else "too long"
        promised = "x".join(map(str, sizes))
        raise UserError(
            f"{file} is {state}: its header promises {promised} bytes, got {len(data) - start}."
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).reshape(sizes)
