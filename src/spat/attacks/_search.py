"""The searches (APGD, FAB, Square): what they are given, how they are run, what they hand back.

A search attacks an example in rounds, one per restart or target class. Its verbs are

    begin(model, batch, round) -> state      advance(model, state): one more step of every row

so that a driver decides what shares a batch: `Search.search` goes round by round over the examples
that are left; an evaluation may keep one batch full from a queue of (example, round) pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from spat import rng as random
from spat.attacks._base import Attack, first_logits
from spat.attacks._state import State, column
from spat.threat import column as broadcast

STREAMS = 1 << 13  # sub-streams of an example's stream: more than the queries of Square
S = TypeVar("S", bound=State)
Terms = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """Examples to attack, with all that is known of them before the first step."""

    x: Tensor
    y: Tensor
    clean: Tensor  # [n, C] logits of x
    eps: Tensor  # [n]
    index: Tensor  # int64 [n]: the number by which a driver knows the example
    source: random.Source

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        return self.clean.shape[1]

    @property
    def broken(self) -> Tensor:
        """bool [n]: examples that need no attack."""
        return self.clean.argmax(1) != self.y

    def take(self, rows: Tensor) -> Batch:
        rows = rows.to(self.x.device)
        x, y, clean, eps, index = (
            t[rows] for t in (self.x, self.y, self.clean, self.eps, self.index)
        )
        return Batch(x, y, clean, eps, index, random.take(self.source, rows))

    def rounds(self, of: int | Tensor) -> Tensor:
        """int64 [n]: one round for all rows, or one for each."""
        if isinstance(of, Tensor):
            return of.to(self.y)
        return torch.full_like(self.y, of, dtype=torch.int64)

    def targets(self, rank: Tensor) -> Tensor:
        """int64 [n]: the class that comes `rank` places after the label on the clean image."""
        others = self.clean.scatter(1, self.y[:, None], torch.inf).sort(1).indices.flip(1)
        return others.gather(1, rank[:, None]).squeeze(1)


@dataclass
class Found:
    """What a search hands back, one row per example of its batch."""

    x_adv: Tensor  # a misclassified image where there is one, else the best attempt
    broken: Tensor  # bool [n]
    step: Tensor  # int64 [n]: the step that broke it; 0 if the clean image is; -1 if none did
    round: Tensor  # int64 [n]: the round that broke it; -1 if none did
    score: Tensor  # [n] of the best attempt

    @classmethod
    def before(cls, batch: Batch) -> Self:
        none = torch.full_like(batch.index, -1)
        return cls(
            x_adv=batch.x.clone(),
            broken=batch.broken,
            step=torch.where(batch.broken, 0, none),
            round=none,
            score=torch.full_like(batch.eps, -torch.inf),
        )

    def collect(self, state: State, done: Tensor) -> None:
        """Take the result of rows that are done; `index` counts the rows of this batch."""
        at, broken = state.index[done], state.broken[done]
        better = broken | (state.score[done] > self.score[at])
        shown = torch.where(column(broken, state.x), state.x_found[done], state.best[done])
        self.x_adv[at[better]] = shown[better]
        self.score[at] = torch.maximum(self.score[at], state.score[done])
        hit = at[broken]
        self.broken[hit] = True
        self.step[hit] = state.step_found[done][broken]
        self.round[hit] = state.round[done][broken]


@dataclass(frozen=True, kw_only=True)
class Search(Attack, Generic[S]):
    """An attack in rounds over rows of state."""

    stride: ClassVar[int] = 1  # steps between two looks at which rows are done
    rows: ClassVar[type[State]]  # what `begin` returns
    in_lanes: ClassVar[bool] = True  # whether rows are dealt to threads, not each of its forwards

    def rounds(self, classes: int) -> int:
        """How many rounds an example may need."""
        raise NotImplementedError

    def begin(self, model: nn.Module, batch: Batch, round: int | Tensor = 0) -> S:
        """A row per example of the batch, in one round for all or one for each."""
        raise NotImplementedError

    def advance(self, model: nn.Module, state: S) -> None:
        """One step of every row."""
        raise NotImplementedError

    def remark(self, classes: int) -> str:
        """What a report must say of this attack on a model of so many classes; else empty."""
        return ""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, source: random.Source) -> Tensor:
        return self.search(model, self.batch(model, x, y, source)).x_adv

    def batch(self, model: nn.Module, x: Tensor, y: Tensor, source: random.Source) -> Batch:
        """Examples as `begin` wants them; costs one forward."""
        x, y = x.detach(), y.long()
        clean = wide(first_logits(model, x, y))
        return Batch(x, y, clean, self.budget(x), torch.arange(len(x), device=x.device), source)

    def budget(self, x: Tensor) -> Tensor:
        """eps as one number per row."""
        eps = torch.as_tensor(broadcast(self.eps, x), dtype=x.dtype, device=x.device)
        return eps.reshape(-1).expand(len(x)).clone()

    def search(self, model: nn.Module, batch: Batch) -> Found:
        """Round by round over the examples that are not yet broken, to the end."""
        found = Found.before(batch)
        for k in range(self.rounds(batch.classes)):
            left = (~found.broken).nonzero().squeeze(1)
            if not len(left):
                break
            state = self.begin(model, batch.take(left), k)
            state.index = left
            self.finish(model, state, found)
        return found

    def finish(self, model: nn.Module, state: S, found: Found) -> None:
        """Advance until no row is active; rows leave as soon as they are done."""
        while True:
            done = ~state.active
            if bool(done.any()):
                found.collect(state, done)
                state.keep(~done)
            if not len(state):
                return
            for _ in range(self.stride):
                self.advance(model, state)

    def fields(self, batch: Batch, round: Tensor, limit: int) -> dict[str, Any]:
        """The fields that the state of any search begins with."""
        return {
            "index": batch.index,
            "round": round,
            "x": batch.x,
            "y": batch.y,
            "eps": batch.eps,
            "step": torch.zeros_like(batch.index),
            "limit": torch.full_like(batch.index, limit),
            "broken": torch.zeros_like(batch.index, dtype=torch.bool),
            "x_found": batch.x.clone(),
            "step_found": torch.full_like(batch.index, -1),
        }


def stream(source: random.Source, number: Tensor) -> random.Source:
    """Numbered streams of their own for the rows; a generator simply goes on."""
    if not isinstance(source, random.PerExample):
        return source
    return random.PerExample(source.seed, source.ids * STREAMS + number.cpu())


def wide(z: Tensor) -> Tensor:
    """Losses are never computed in low precision."""
    return z.to(torch.promote_types(z.dtype, torch.float32))


def climb(model: nn.Module, z: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    """Logits, loss and its gradient with respect to the input alone, at z."""
    z = z.detach().requires_grad_()
    logits = wide(model(z))
    value = loss(logits)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    return logits.detach(), value.detach(), gradient
