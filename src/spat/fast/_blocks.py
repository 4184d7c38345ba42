"""Blocks of a batch, each worked on from start to end by a thread of its own.

The examples of an attack are independent: a block can go through all steps without waiting for the
others, its activations stay in the cache, and no operation ends with all threads waiting for the
slowest. Every worker's operations then run on its share of the threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from spat.fast._heap import keep_freed_memory

SMALLEST = 32  # examples of a block; below, calling an operation costs as much as computing it
MOST = 4  # workers: Python runs one of them at a time
T = TypeVar("T")
R = TypeVar("R")


class Crew(Protocol):
    def __call__(self, fn: Callable[[T], R], items: Sequence[T], /) -> list[R]: ...


@dataclass(frozen=True)
class Split:
    """How a batch is worked on: in blocks of `block`, by `workers` of `threads` threads each."""

    block: int
    workers: int = 1
    threads: int = 1


def split(model: nn.Module, n: int, device: torch.device, *, smallest: int = SMALLEST) -> Split:
    """How to attack n examples: on a CPU in equal blocks, one a worker; elsewhere all at once.

    Only a model that says of itself that it is `separable` can be given a part of a batch.
    smallest: examples that are worth a block
    """
    if not getattr(model, "separable", False):
        return Split(n)
    threads = torch.get_num_threads()
    workers = min(threads, n // smallest, MOST) if device.type == "cpu" else 1
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
    with crew(by) as together:
        return torch.cat(together(fn, blocks))


@contextmanager
def crew(by: Split) -> Iterator[Crew]:
    """A `map` whose calls run side by side; an exception is raised once all of them have ended.

    The workers, of which the caller is one, see its gradient mode and use `by.threads` threads an
    operation. A call that is alone is the caller's own, with all threads.
    """
    if by.workers == 1:
        yield one_by_one
        return
    with _workers(by) as pool:

        def together(fn: Callable[[T], R], items: Sequence[T]) -> list[R]:
            if len(items) == 1:
                return one_by_one(fn, items)
            futures = [pool.submit(fn, item) for item in items[1:]]
            try:
                with threads(by.threads):
                    first = fn(items[0])
            finally:
                wait(futures)
            return [first, *(future.result() for future in futures)]

        yield together


class InBlocks(nn.Module):
    """A model to which a crew gives each batch in blocks of at least `smallest`; no gradients."""

    def __init__(self, net: nn.Module, together: Crew, by: Split, smallest: int) -> None:
        super().__init__()
        self.net, self.together, self.by, self.smallest = net, together, by, smallest

    def forward(self, x: Tensor) -> Tensor:
        parts = max(min(self.by.workers, len(x) // self.smallest), 1)
        return torch.cat(self.together(self._answer, x.chunk(parts)))

    @torch.no_grad()
    def _answer(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


@contextmanager
def threads(n: int) -> Iterator[None]:
    """So many for an operation of the caller."""
    before = torch.get_num_threads()
    if n != before:
        torch.set_num_threads(n)
    try:
        yield
    finally:
        if n != before:
            torch.set_num_threads(before)


def one_by_one(fn: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [fn(item) for item in items]


@contextmanager
def _workers(by: Split) -> Iterator[ThreadPoolExecutor]:
    keep_freed_memory()
    before, grad = torch.get_num_threads(), torch.is_grad_enabled()

    def prepare() -> None:
        torch.get_num_threads()  # or the thread's first operation takes what was last set anywhere
        torch.set_num_threads(by.threads)
        torch.set_grad_enabled(grad)

    try:
        with ThreadPoolExecutor(by.workers, initializer=prepare) as pool:
            yield pool
    finally:  # `prepare` also set what later threads of the process start with
        torch.set_num_threads(before)
