"""A batch in parts that go through the model one after another, as if they went at once.

    gradient of the mean over n images = sum over the parts of len(part) / n x that of their mean

So gradients add up, and only one part's activations are in memory at a time. What looks at the
whole batch asks its World (weights of GAIRAT and MAIL, AWP's direction): a part that asks is put
off until all parts have, then all are answered and begin again, which costs another pass of each.
Dropout draws its mask for the whole batch and keeps the part's rows. BatchNorm in training mode
alone sees the part: statistics of the whole batch would need, layer by layer, all of it in memory.
Its running statistics make one step, to the mean of those of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spat import rng
from spat.defences._base import Terms
from spat.training.batches import Batch
from spat.world import World

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Answer:
    """What the whole batch says. resume: puts random numbers to where asking left them"""

    value: Any
    resume: Callable[[], None]


class UnansweredError(Exception):
    """A part waits for the others."""

    def __init__(self, value: Any, combine: Callable[[Any], Any], part: Batch) -> None:
        super().__init__("part of a batch asks for what all of it has")
        self.value, self.combine = value, combine
        self.resume = rng.bookmark(part.x.device)


@dataclass(frozen=True)
class PartOf(World):
    """The World that a defence sees which has one part of `outer`'s images.

    answers: to the questions that the parts asked before, in order
    """

    outer: World = field(kw_only=True)
    part: Batch = field(kw_only=True)
    answers: Iterator[Answer] = field(kw_only=True)

    def total(self, values: Tensor) -> Tensor:
        return self._ask(lambda: values, lambda found: self.outer.total(torch.stack(found).sum(0)))

    def count(self, rows: int) -> int:
        assert rows == len(self.part.x)
        return self.part.n

    def mean(self, values: Tensor) -> Tensor:
        return self._ask(lambda: values, lambda found: self.outer.mean(torch.cat(found)))

    def largest(self, values: Tensor) -> Tensor:
        return self._ask(lambda: values, lambda found: self.outer.largest(torch.cat(found)))

    def log_mean(self, log_values: Tensor) -> Tensor:
        return self._ask(lambda: log_values, lambda found: self.outer.log_mean(torch.cat(found)))

    def share(self, rows: int, n: int) -> float:
        return self.outer.share(rows, n)

    def averaged(self, compute: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """Of sums over the parts; not computed again by a part that has asked before."""
        return self._ask(compute, lambda found: self.outer.averaged(lambda: _sums(found)))

    def _ask(self, compute: Callable[[], T], combine: Callable[[list[T]], R]) -> R:
        answer = next(self.answers, None)
        if answer is None:
            raise UnansweredError(compute(), combine, self.part)
        answer.resume()
        return cast(R, answer.value)


def _sums(found: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(alike).sum(0) for alike in zip(*found, strict=True)]


def one_by_one(
    work: Callable[[int, World], T], parts: Sequence[Batch], model: nn.Module, whole: World
) -> list[T]:
    """What `work(number of the part, its world)` gives for each part."""
    if len(parts) == 1:
        return [work(0, whole)]
    running, answers = Running(model), list[Answer]()
    mine = torch.tensor([len(part.x) for part in parts], device=whole.device)
    lengths = whole.total(mine).tolist()  # with the other processes' parts
    while True:
        done, asked = list[T](), list[UnansweredError]()
        for number, part in enumerate(parts):
            world = PartOf(outer=whole, part=part, answers=iter(answers))
            try:
                with running.of_part(lengths[number] / part.n):
                    done.append(work(number, world))
            except UnansweredError as question:
                asked.append(question.with_traceback(None))  # it holds the part's activations
        if not asked:
            running.finish()
            return done
        assert not done  # all parts run the same code
        combined = asked[0].combine([question.value for question in asked])
        answers.append(Answer(combined, asked[0].resume))


class Running:
    """Buffers of a model that each part of a batch moves from where the step found them."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = list(model.buffers())
        self.start = [buffer.clone() for buffer in self.buffers]
        self.moved = [torch.zeros_like(buffer) for buffer in self.buffers]

    @contextmanager
    def of_part(self, share: float) -> Iterator[None]:
        """Count what the passes inside move, unless an exception ends them."""
        self._set(self.start)
        yield
        for moved, buffer in zip(self.moved, self.buffers, strict=True):
            if buffer.is_floating_point():
                moved.add_(buffer, alpha=share)
            else:  # a count of batches
                moved.copy_(buffer)

    def finish(self) -> None:
        """The mean over the parts."""
        self._set(self.moved)

    def _set(self, values: Sequence[Tensor]) -> None:
        for buffer, value in zip(self.buffers, values, strict=True):
            buffer.copy_(value)


def normalises_batches(model: nn.Module) -> bool:
    """Whether a training pass of the model depends on the batch that an image is in."""
    return any(isinstance(m, _BatchNorm) and m.training for m in model.modules())


def detached(terms: Terms) -> Terms:
    named = {name: part.detach() for name, part in terms.named.items()}
    return Terms(terms.per_example.detach(), named)


def joined(found: Sequence[Terms]) -> Terms:
    """The terms of a batch from those of its parts."""
    named = {name: torch.cat([terms[name] for terms in found]) for name in found[0].named}
    return Terms(torch.cat([terms.per_example for terms in found]), named)


def cat(found: Sequence[Tensor | None]) -> Tensor | None:
    """The rows of a batch from those of its parts, if they have any."""
    rows = [one for one in found if one is not None]
    return torch.cat(rows) if rows else None
