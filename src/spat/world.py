"""Several processes that train or evaluate together, as each of them sees it.

`joined()` reads what torchrun tells a process and joins the others; alone it gives `ALONE`, whose
verbs do nothing. Nobody else asks how many processes there are: they ask for a sum, or their share.

What one of them meets must not lead it elsewhere than the others: a sum that the others wait for
would never come. So they agree on it first (`either`, `agreed`, `by_first`), or a process ends, and
the others with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from spat import launcher
from spat.errors import ToldError, UserError

T = TypeVar("T")
Rows = TypeVar("Rows", Tensor, Sequence[Any])
PATIENCE = timedelta(minutes=10)  # a process that is silent for longer is taken for lost
LONG = timedelta(hours=6)  # so long one may save or evaluate while the others wait for it


@dataclass(frozen=True)
class World:
    """This process is number `rank` of `size`.

    store: holds words that all can read
    patient: the same processes, for messages that may be long in coming
    device: where small messages start from: a GPU's travel by its own network
    """

    rank: int = 0
    size: int = 1
    store: Store | None = field(default=None, repr=False, compare=False)
    patient: Any = field(default=None, repr=False, compare=False)
    device: torch.device = torch.device("cpu")

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
        return int(self.total(torch.tensor(rows, device=self.device)))

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

    def log_mean(self, log_values: Tensor) -> Tensor:
        """The logarithm of the mean over the rows of all processes, of numbers given as theirs."""
        largest = self.largest(log_values)
        return largest + self.mean((log_values - largest).exp()).log()

    def share(self, rows: int, n: int) -> float:
        """By what the loss of `rows` of all n images is multiplied, so that the average of the
        processes' gradients is the gradient of the mean over all images.
        """
        return self.size * rows / n

    def averaged(self, compute: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """The mean over the processes of each tensor that `compute` gives, in one message."""
        tensors = compute()
        if self.size == 1 or not tensors:
            return list(tensors)
        mean = self.total(torch.cat([t.flatten() for t in tensors])) / self.size
        parts = torch.split(mean, [t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def either(self, *flags: bool) -> tuple[bool, ...]:
        """For each of these, whether it is so for one of the processes: one message."""
        if self.size == 1:
            return flags
        counts = self.total(torch.tensor(flags, dtype=torch.int32, device=self.device))
        return tuple(bool(count) for count in counts.tolist())

    def gather(self, value: T) -> list[T]:
        """The value of each process, in order of rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.patient)
        return found

    def collected(self, value: T) -> list[T]:
        """The value of each process for the first one; the others get nothing."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.first else None
        dist.gather_object(value, found, group=self.patient)
        return found or []

    def whole(self, mine: Tensor | None) -> Tensor | None:
        """What the processes hold the shares of, for the first one; the others get None."""
        if self.size == 1 or mine is None:
            return mine
        parts = self.collected(mine.cpu())
        if not parts:
            return None
        rows = mine.new_empty((sum(map(len, parts)), *mine.shape[1:]))
        for rank, part in enumerate(parts):
            rows[rank :: self.size] = part.to(rows)
        return rows

    def agreed(self, action: Callable[[], T]) -> T:
        """What each process gets by its own action; a mistake that one meets, all of them do."""
        if self.size == 1:
            return action()
        try:
            found, mistake = [action()], None
        except UserError as error:
            found, mistake = [], error
        if self.either(mistake is not None)[0]:
            raise next(error for error in self.gather(mistake) if error is not None)
        return found[0]

    def by_first(self, action: Callable[[], T]) -> T:
        """What the first process gets by an action that only it carries out, mistakes included."""
        if self.size == 1:
            return action()
        said: list[Any] = [None, None]
        if self.first:
            try:
                said = [action(), None]
            except UserError as error:
                said = [None, error]
        dist.broadcast_object_list(said, src=0, group=self.patient)
        result, mistake = said
        if mistake is not None:
            raise mistake
        return cast(T, result)

    def call(self, word: str) -> bool:
        """Leave a word for all to read at any time; whether this is the first to leave it."""
        return self.store is None or self.store.add(f"spat/{word}", 1) == 1

    def called(self, word: str) -> bool:
        return self.store is not None and self.store.check([f"spat/{word}"])


ALONE = World()


@contextmanager
def joined(patience: timedelta = PATIENCE) -> Iterator[World]:
    """Join the processes started with this one. A mistake ends all of them and is told by one; a
    lost process ends the others with a sentence.

    With a GPU each process takes the one of its local rank; gradients then travel by NCCL and
    objects by gloo.
    """
    if dist.is_available() and dist.is_initialized():  # a caller's own group is the caller's
        yield _seen()
        return
    if not launcher.is_shared():
        yield ALONE
        return
    world = _join(patience)
    try:
        yield world
        dist.destroy_process_group()
    except UserError as error:
        is_mine = _is_first_to_tell(world, alone=False)
        _leave()
        raise error if is_mine else ToldError(str(error)) from None
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        kind = UserError if _is_first_to_tell(world, alone=True) else ToldError
        _leave()
        raise kind(_lost(error)) from None


def placed(world: World, device: torch.device) -> World:
    """The world of processes that compute on this kind of device, each on its own one."""
    if world.size == 1 or device.type != "cuda":
        return world
    if device.index is not None:
        raise UserError(
            f"device {str(device)!r} is one GPU, and {world.size} processes cannot share it: "
            "use --device cuda, and each takes its own."
        )
    mine, there = launcher.local_rank(), torch.cuda.device_count()
    if mine >= there:
        raise UserError(
            f"process {mine + 1} of this machine finds no GPU of its own, torch sees {there}: "
            "start as many processes as there are GPUs, or use --device cpu."
        )
    return replace(world, device=torch.device("cuda", mine))


def _join(patience: timedelta) -> World:
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        if launcher.local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(launcher.local_rank())
    try:
        dist.init_process_group(backend, timeout=patience)
        return _seen()
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"this process, number {launcher.rank()} of {launcher.size()}, could not join the "
            f"others at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} "
            f"({_reason(error)}); was each of them started, by torchrun, say?"
        ) from None


def _leave() -> None:
    """After a mistake: a process whose threads still listen to the others may not end in peace.
    With NCCL it could wait for messages that never come.
    """
    if not torch.cuda.is_available():
        dist.destroy_process_group()


def _seen() -> World:
    store = distributed_c10d._get_default_store()
    patient = dist.new_group(timeout=LONG, backend="gloo")
    return World(dist.get_rank(), dist.get_world_size(), store, patient)


def _is_first_to_tell(world: World, *, alone: bool) -> bool:
    """alone: what to take it for when the store went with the process that held it. That process
    made the same mistake and told it, or it is the one that was lost.
    """
    try:
        return world.call("mistake")
    except RuntimeError:
        return alone


def _is_loss(error: RuntimeError) -> bool:
    """gloo's errors are plain ones that name its source files."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _lost(error: RuntimeError) -> str:
    return (
        f"one of the {launcher.size()} processes ended or fell silent, and the others cannot go on "
        f"without it; its own error stands above, or its machine is gone ({_reason(error)})."
    )


def _reason(error: Exception) -> str:
    """What a library's message says first, without the place in its source."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[\S*\] *", "", line).partition(". ")[0][:120]
