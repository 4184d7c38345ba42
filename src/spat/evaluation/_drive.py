"""A search on many images: one batch, kept full from a queue of (example, round) pairs.

A pair's place is free again as soon as its row is done: broken and confirmed by the model, at its
last step, or overtaken, as an earlier round has broken the example. The pairs of a round come
before those of the next, so that few rounds are begun in vain. What the model refutes goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from spat.attacks._search import Batch, Search
from spat.attacks._state import State, column
from spat.evaluation._part import Pause, Task

REFILL = 4  # a batch is refilled when this part of it is empty: few rows cost as much as many


class Drive:
    """The rows of one search, on the copy or, `again`, on the model itself."""

    def __init__(self, task: Task, pairs: Tensor | None = None, *, again: bool = False) -> None:
        assert isinstance(task.attack, Search)
        self.task, self.attack = task, task.attack
        self.net = task.net(again)
        rounds = self.attack.rounds(task.examples.classes)
        self.pairs = all_pairs(task.tally.left, rounds) if pairs is None else pairs
        self.is_again = again
        self.next = 0  # of the pairs
        self.pool: State | None = None
        self.parked: State | None = None  # rows for which there is no memory any more
        self.refuted = torch.zeros(len(task.examples), rounds, dtype=torch.bool)

    def run(self, pause: Pause) -> None:
        while self._fill():
            self._advance()
            pause(self._share())

    def again(self) -> Self | None:
        tally = self.task.tally
        pairs = self.refuted.T.nonzero().flip(1)
        pairs = pairs[~tally.broken[pairs[:, 0]]]
        if self.is_again or not len(pairs):
            return None
        return type(self)(self.task, pairs, again=True)

    def tensors(self) -> dict[str, Tensor]:
        whole = {"pairs": self.pairs, "refuted": self.refuted, "next": torch.tensor(self.next)}
        for name, rows in (("pool", self.pool), ("parked", self.parked)):
            if rows is not None:
                whole |= {f"{name}.{key}": t for key, t in rows.tensors().items()}
        return whole

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.pairs, self.refuted = tensors["pairs"], tensors["refuted"]
        self.next = int(tensors["next"])
        self.pool, self.parked = (self._rows(tensors, name) for name in ("pool", "parked"))

    def _rows(self, tensors: Mapping[str, Tensor], name: str) -> State | None:
        own = {key.partition(".")[2]: t for key, t in tensors.items() if key.startswith(f"{name}.")}
        return self.attack.rows.restore(own, self.task.subject.device) if own else None

    def _share(self) -> float:
        """Of the pairs, those that are done or overtaken, and of the others the steps taken."""
        begun = [rows for rows in (self.pool, self.parked) if rows is not None]
        left = sum(float((1 - rows.step / rows.limit.clamp(min=1)).sum()) for rows in begun)
        return (self.next - left) / max(len(self.pairs), 1)

    def _fill(self) -> bool:
        """Let rows leave and others enter; whether there are any to advance."""
        while True:
            self._settle()
            size, rows = self.task.subject.room.size, len(self.pool or ())
            waiting = self.parked is not None or self.next < len(self.pairs)
            if not waiting or (rows and size - rows < max(size // REFILL, 1)):
                return rows > 0
            self._enter(size - rows)

    def _enter(self, free: int) -> None:
        """At most so many rows more: first those that had to leave for want of memory."""
        if self.parked is not None:
            self._join(self._taken_from_parked(free))
            return
        rest = self.pairs[self.next :]
        wanted = (rest[:, 1] < self.task.tally.round[rest[:, 0]]).nonzero().squeeze(1)[:free]
        if len(wanted):
            batch = self._batch(rest[wanted, 0])
            begun: list[State] = []
            rounds = rest[wanted, 1].to(self.task.subject.device)
            begin = lambda: begun.append(self.attack.begin(self.net, batch, rounds))  # noqa: E731
            if not self.task.subject.room.fits(begin, len(wanted)):
                return
            self._join(begun[0])
        self.next += int(wanted[-1]) + 1 if len(wanted) else len(rest)

    def _taken_from_parked(self, free: int) -> State:
        assert self.parked is not None
        rows, rest = copy.copy(self.parked), copy.copy(self.parked)
        everyone = torch.arange(len(rows))
        rows.keep(everyone[:free])
        rest.keep(everyone[free:])
        self.parked = rest if len(rest) else None
        return rows

    def _join(self, rows: State) -> None:
        if self.pool is None or not len(self.pool):
            self.pool = rows
        else:
            self.pool.append(rows)

    def _batch(self, at: Tensor) -> Batch:
        e, device = self.task.examples, self.task.subject.device
        x = e.x[at.to(e.x.device)].detach().to(device)
        y, clean, index = (t.to(device) for t in (e.y[at], e.clean[at], at))
        return Batch(x, y, clean, self.attack.budget(x), index, self.task.source[at])

    def _advance(self) -> None:
        """Some steps of every row; where memory ends, as before them and with fewer rows."""
        assert self.pool is not None
        before = copy.copy(self.pool)  # a step gives a state new tensors and writes into none
        if not self.task.subject.room.fits(self._steps, len(before)):
            if self.parked is not None:
                before.append(self.parked)
            self.pool, self.parked = None, before

    def _steps(self) -> None:
        assert self.pool is not None
        for _ in range(self.attack.stride):
            self.attack.advance(self.net, self.pool)

    def _settle(self) -> None:
        """Rows that are done leave, once the model has judged what they have to show."""
        while self.pool is not None and bool((done := ~self.pool.active).any()):
            rows = done.nonzero().squeeze(1)
            leaving = done.index_put((rows,), self._judged(self.pool, rows))
            found = self.task.tally.round.to(leaving.device)
            overtaken = self.pool.round > found[self.pool.index]
            self.pool.keep(~(leaving | overtaken))

    def _judged(self, s: State, rows: Tensor) -> Tensor:
        """bool [k] which of these rows leave: not those whose break the model refutes."""
        task, claimed = self.task, s.broken[rows]
        shown = torch.where(column(claimed, s.x), s.x_found[rows], s.best[rows])
        x_adv, predicted = task.subject.judge(self.attack.norm, shown, s.x[rows], s.eps[rows])
        step = torch.where(claimed, s.step_found[rows], s.step[rows]).cpu()
        at, round, score = (t[rows].cpu() for t in (s.index, s.round, s.score))
        wrong, x_adv, claimed = predicted != task.examples.y[at], x_adv.cpu(), claimed.cpu()
        task.tally.enter(at[wrong], x_adv[wrong], predicted[wrong], step[wrong], round[wrong],
                         task.stage)  # fmt: skip
        held = ~wrong & ~claimed
        task.tally.try_on(at[held], x_adv[held], score[held], round[held])
        refuted = claimed & ~wrong
        self.refuted[at[refuted], round[refuted]] = True
        s.broken = s.broken.index_put((rows,), (wrong & claimed).to(s.broken.device))
        return (wrong | ~claimed).to(s.broken.device)


def all_pairs(examples: Tensor, rounds: int) -> Tensor:
    """int64 [m, 2] (example, round), round by round."""
    numbers = torch.arange(rounds).repeat_interleave(len(examples))
    return torch.stack([examples.repeat(rounds), numbers], 1)
