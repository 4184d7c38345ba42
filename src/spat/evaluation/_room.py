"""How many images fit in memory at once: a device that runs out gets half as many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from spat.errors import UserError

GPU_BATCH, CPU_BATCH = 512, 64  # what fills a GPU; what stays in a processor's cache
NUMBERS = 32 * 32 * 3  # of an image that these batches are meant for
SMALLER = 4  # at most so many times as many of smaller images


def automatic(device: torch.device, shape: torch.Size) -> int:
    """A batch that suits the device; fewer of larger images, more of smaller ones."""
    most = GPU_BATCH if device.type == "cuda" else CPU_BATCH
    return max(1, min(most * NUMBERS // shape.numel(), most * SMALLER))


class Room:
    """The batch size of an evaluation, which only ever shrinks."""

    def __init__(self, size: int) -> None:
        self.size = size

    def shrink(self, tried: int) -> None:
        """So many did not fit."""
        if tried <= 1:
            raise UserError(
                "the device has not enough memory for even one image; free some, or use another."
            )
        self.size = min(self.size, tried // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def fits(self, work: Callable[[], object], rows: int) -> bool:
        """Whether the work on so many rows could be done; if not there is less room now."""
        try:
            work()
        except torch.OutOfMemoryError:
            pass  # and its traceback, which holds tensors, is gone before memory is looked for
        else:
            return True
        self.shrink(rows)
        return False

    def rows(self, compute: Callable[[slice], Tensor], n: int) -> Tensor:
        """[n, ...] on the CPU, computed in parts that fit."""
        parts: list[Tensor] = []
        start = 0
        while start < n:
            part = slice(start, min(start + self.size, n))
            if self.fits(partial(_append, parts, compute, part), part.stop - start):
                start = part.stop
        return torch.cat(parts)


def _append(parts: list[Tensor], compute: Callable[[slice], Tensor], part: slice) -> None:
    parts.append(compute(part).cpu())
