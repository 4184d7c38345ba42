"""Blocks of a batch, each worked on from start to end by a thread of its own.

The examples of an attack are independent: a block can go through all steps without waiting for the
others, its activations stay in the cache, and no operation ends with all threads waiting for the
slowest. Every worker's operations then run on its share of the threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SMALLEST = 32  # examples of a block; below, calling an operation costs as much as computing it
MOST = 4  # workers: Python runs one of them at a time


@dataclass(frozen=True)
class Split:
    """How a batch is worked on: in blocks of `block`, by `workers` of `threads` threads each."""

    block: int
    workers: int = 1
    threads: int = 1


def split(model: nn.Module, n: int, device: torch.device) -> Split:
    """How to attack n examples: on a CPU in equal blocks, one a worker; elsewhere all at once.

    Only a model that says of itself that it is `separable` can be given a part of a batch.
    """
    if not getattr(model, "separable", False):
        return Split(n)
    threads = torch.get_num_threads()
    workers = min(threads, n // SMALLEST, MOST) if device.type == "cpu" else 1
    workers = max(workers, 1)
    return Split(math.ceil(n / workers), workers, threads // workers)


def run_blocks(fn: Callable[[slice], Tensor], n: int, by: Split) -> Tensor:
    """The rows fn(rows) of a batch of n, block by block; they come back in order.

    Only `by.block` has a say in the numbers, not which block is done first. An exception in a
    block is raised here, once the other blocks are done.
    """
    if by.block >= n:
        return fn(slice(0, n))
    blocks = [slice(start, start + by.block) for start in range(0, n, by.block)]
    with _workers(by) as pool:
        return torch.cat(list(pool.map(fn, blocks)))


@contextmanager
def _workers(by: Split) -> Iterator[ThreadPoolExecutor]:
    """Threads that see the caller's gradient mode and use `by.threads` threads an operation."""
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()

    def prepare() -> None:
        torch.set_num_threads(by.threads)
        torch.set_grad_enabled(grad)

    try:
        with ThreadPoolExecutor(by.workers, initializer=prepare) as pool:
            yield pool
    finally:  # `prepare` also set what later threads of the process start with
        torch.set_num_threads(threads)
