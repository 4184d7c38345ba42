"""Several processes that train or evaluate together, as each of them sees it.

`joined()` reads what torchrun tells a process and joins the others; alone it gives `ALONE`, whose
verbs do nothing. Nobody else asks how many processes there are: they ask for a sum, or their share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from spat.errors import UserError

T = TypeVar("T")
Rows = TypeVar("Rows", Tensor, Sequence[Any])
PATIENCE = timedelta(minutes=10)  # a process that is silent for longer is taken for lost


@dataclass(frozen=True)
class World:
    """This process is number `rank` of `size`; the store holds words that all can read."""

    rank: int = 0
    size: int = 1
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def first(self) -> bool:
        """The process that writes and prints."""
        return self.rank == 0

    def mine(self, rows: Rows) -> Rows:
        """Every size-th row, from the rank on: shares differ by one at most, and a row keeps its
        place in its share when the whole loses its last one.
        """
        return rows[self.rank :: self.size]

    def total(self, values: Tensor) -> Tensor:
        """The sum over the processes; every one of them gets the same bits."""
        if self.size == 1:
            return values
        summed = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed

    def count(self, rows: int) -> int:
        """How many rows all processes have together."""
        return int(self.total(torch.tensor(rows)))

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the rows of all processes, however many each has."""
        return (
            values.mean(0)
            if self.size == 1
            else self.total(values.sum(0)) / self.count(len(values))
        )

    def largest(self, values: Tensor) -> Tensor:
        """The largest number that any process has."""
        found = values.detach().max()
        if self.size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return found

    def share(self, rows: int, n: int) -> float:
        """By what the loss of `rows` of all n images is multiplied, so that the average of the
        processes' gradients is the gradient of the mean over all images.
        """
        return self.size * rows / n

    def averaged(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean over the processes of each of these tensors, in one message."""
        if self.size == 1 or not tensors:
            return list(tensors)
        mean = self.total(torch.cat([t.flatten() for t in tensors])) / self.size
        parts = torch.split(mean, [t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def any(self, flag: bool) -> bool:
        """Whether it is so for one of them: what all must agree on before they go on."""
        return flag if self.size == 1 else bool(self.total(torch.tensor(int(flag))))

    def gather(self, value: T) -> list[T]:
        """The value of each process, in order of rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def by_first(self, action: Callable[[], T]) -> T:
        """What the first process gets by an action that only it carries out, errors included."""
        if self.size == 1:
            return action()
        said: list[Any] = [None]
        if self.first:
            try:
                said = [(action(), None)]
            except UserError as error:
                said = [(None, error)]
        dist.broadcast_object_list(said, src=0)
        result, mistake = said[0]
        if mistake is not None:
            raise mistake
        return cast(T, result)

    def call(self, word: str) -> bool:
        """Leave a word for all to read at any time; whether this is the first to leave it."""
        return self.store is None or self.store.add(f"spat/{word}", 1) == 1

    def called(self, word: str) -> bool:
        return self.store is not None and self.store.check([f"spat/{word}"])


ALONE = World()


def expected(environ: os._Environ[str] = os.environ) -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return int(environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in environ


@contextmanager
def joined(patience: timedelta = PATIENCE) -> Iterator[World]:
    """Join the processes started with this one; a lost one ends the others with a sentence.

    With a GPU each process takes the one of its local rank; gradients then travel by NCCL and
    everything small by gloo.
    """
    if dist.is_available() and dist.is_initialized():  # a caller's own group is the caller's
        yield _seen()
    elif not expected():
        yield ALONE
    else:
        try:
            yield _join(patience)
        except RuntimeError as error:
            if not _is_loss(error):
                raise
            raise UserError(_lost(error)) from None
        dist.destroy_process_group()


def _join(patience: timedelta) -> World:
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=patience)
    return _seen()


def _seen() -> World:
    store = distributed_c10d._get_default_store()
    return World(dist.get_rank(), dist.get_world_size(), store)


def _is_loss(error: RuntimeError) -> bool:
    """gloo's errors are plain ones that name its source files."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _lost(error: RuntimeError) -> str:
    size, reason = os.environ["WORLD_SIZE"], str(error).strip().partition("\n")[0]
    return (
        f"one of the {size} processes ended or fell silent, and the others cannot go on without "
        f"it; its own error stands above, or its machine is gone ({reason[-160:]})."
    )
