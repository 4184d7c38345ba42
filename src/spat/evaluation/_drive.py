"""A search on many images: one batch, kept full from a queue of (example, round) pairs.

On a CPU its rows are dealt to lanes, one a thread: between two looks at what is done no lane waits
for another, which operations that all threads share do all the time. A search that does much
between its forwards, where Python lets one thread run at a time, has one lane and shares those.

A pair's place is free again as soon as its row is done: broken and confirmed by the model, at its
last step, or overtaken, as an earlier round has broken the example. The pairs of a round come
before those of the next, so that few rounds are begun in vain. What the model refutes goes on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from spat.attacks._search import Batch, Search
from spat.attacks._state import State, column
from spat.evaluation._part import FEWEST, Pause, Task
from spat.fast import Crew, InBlocks, crew, one_by_one, split, threads

REFILL = 4  # a batch is refilled when this part of it is empty: few rows cost as much as many
UNEVEN = 1.25  # a lane so many times as long as the average is shortened
PARKED = "parked"


class Drive:
    """The rows of one search, on the copy or, `again`, on the model itself."""

    def __init__(self, task: Task, pairs: Tensor | None = None, *, again: bool = False) -> None:
        assert isinstance(task.attack, Search)
        self.task, self.attack = task, task.attack
        self.net = self.asked = task.net(again)
        rounds = self.attack.rounds(task.examples.classes)
        self.pairs = all_pairs(task.tally.left, rounds) if pairs is None else pairs
        self.is_again = again
        self.next = 0  # of the pairs
        room, device = task.subject.room, task.subject.device
        self.by = split(self.net, room.size, device, smallest=FEWEST)
        self.places = self.by.workers if self.attack.in_lanes else 1
        self.together: Crew = one_by_one
        self.lanes: dict[int, State] = {}
        self.parked: State | None = None  # rows that have no place: where memory ended, say
        self.refuted = torch.zeros(len(task.examples), rounds, dtype=torch.bool)

    def run(self, pause: Pause) -> None:
        with crew(self.by) as self.together:
            if not self.attack.in_lanes:
                self.asked = InBlocks(self.net, self.together, self.by, FEWEST)
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
        rows = {f"lane {k}": lane for k, lane in self.lanes.items()}
        if self.parked is not None:
            rows[PARKED] = self.parked
        for name, state in rows.items():
            whole |= {f"{name}.{key}": t for key, t in state.tensors().items()}
        return whole

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.pairs, self.refuted = tensors["pairs"], tensors["refuted"]
        self.next = int(tensors["next"])
        names = dict.fromkeys(key.partition(".")[0] for key in tensors if "." in key)
        rows = {name: self._rows(tensors, name) for name in names}
        self.parked = rows.pop(PARKED, None)
        self.lanes = {int(name.removeprefix("lane ")): state for name, state in rows.items()}
        if any(k >= self.places for k in self.lanes):  # of a machine with more threads
            self._park()

    def _rows(self, tensors: Mapping[str, Tensor], name: str) -> State:
        own = {key.partition(".")[2]: t for key, t in tensors.items() if key.startswith(f"{name}.")}
        return self.attack.rows.restore(own, self.task.subject.device)

    def _share(self) -> float:
        """Of the pairs, those that are done or overtaken, and of the others the steps taken."""
        begun = [*self.lanes.values(), *([self.parked] if self.parked is not None else [])]
        left = sum(float((1 - rows.step / rows.limit.clamp(min=1)).sum()) for rows in begun)
        return (self.next - left) / max(len(self.pairs), 1)

    @property
    def _lengths(self) -> list[int]:
        """Of the lanes, of which some may have no rows yet."""
        return [len(self.lanes.get(k, ())) for k in range(self.places)]

    def _fill(self) -> bool:
        """Let rows leave and others enter; whether there are any to advance."""
        while True:
            for lane in self.lanes.values():
                self._settle(lane)
            size, rows = self.task.subject.room.size, sum(self._lengths)
            waiting = self.parked is not None or self.next < len(self.pairs)
            if not waiting or (rows and size - rows < max(size // REFILL, 1)):
                self._level()
                return rows > 0
            self._enter(size - rows)

    def _enter(self, free: int) -> None:
        """At most so many rows more: first those that had to leave for want of memory."""
        if self.parked is not None:
            self._unpark(free)
            return
        rest = self.pairs[self.next :]
        wanted = (rest[:, 1] < self.task.tally.round[rest[:, 0]]).nonzero().squeeze(1)[:free]
        if len(wanted):
            begun: list[State] = []
            dealt = self._dealt(wanted)
            pairs = [(rest[at, 0], rest[at, 1]) for at in dealt.values()]
            begin = lambda: begun.extend(self.together(self._begun, pairs))  # noqa: E731
            if not self.task.subject.room.fits(begin, len(wanted)):
                return
            for k, rows in zip(dealt, begun, strict=True):
                self._join(k, rows)
        self.next += int(wanted[-1]) + 1 if len(wanted) else len(rest)

    def _begun(self, pairs: tuple[Tensor, Tensor]) -> State:
        at, rounds = pairs
        batch, device = self._batch(at), self.task.subject.device
        rows: State = self.attack.begin(self.asked, batch, rounds.to(device))
        return rows

    def _dealt(self, arriving: Tensor) -> dict[int, Tensor]:
        """By lane: more to those that have few."""
        lengths = self._lengths
        rows = sum(lengths) + len(arriving)
        lengths = lengths[: self._worthwhile(rows)]
        full = math.ceil(rows / len(lengths))
        free = [max(full - length, 0) for length in lengths]
        starts = [0, *accumulate(free)]
        parts = {k: arriving[starts[k] : starts[k + 1]] for k in range(len(lengths))}
        return {k: part for k, part in parts.items() if len(part)}

    def _worthwhile(self, rows: int) -> int:
        """Lanes for so many rows."""
        return max(min(self.places, rows // FEWEST), 1)

    def _join(self, k: int, rows: State) -> None:
        if len(self.lanes.get(k, ())):
            self.lanes[k].append(rows)
        else:
            self.lanes[k] = rows

    def _level(self) -> None:
        """Where a lane has far more rows than another, all wait for it: deal them anew."""
        lengths = [length for length in self._lengths if length]
        rows, lanes = sum(lengths), self._worthwhile(sum(lengths))
        if rows and (len(lengths) > lanes or max(lengths) > UNEVEN * rows / lanes + 1):
            self._park()
            self._unpark(rows)

    def _park(self) -> None:
        """The rows of all lanes leave them."""
        lanes = [*([self.parked] if self.parked is not None else []), *self.lanes.values()]
        self.parked, self.lanes = lanes[0], {}
        for lane in lanes[1:]:
            self.parked.append(lane)

    def _unpark(self, free: int) -> None:
        assert self.parked is not None
        everyone, parked = torch.arange(len(self.parked)), self.parked
        for k, at in self._dealt(everyone[:free]).items():
            self._join(k, _taken(parked, at))
        self.parked = _taken(parked, everyone[free:]) if len(parked) > free else None

    def _batch(self, at: Tensor) -> Batch:
        e, device = self.task.examples, self.task.subject.device
        x = e.x[at.to(e.x.device)].detach().to(device)
        y, clean, index = (t.to(device) for t in (e.y[at], e.clean[at], at))
        return Batch(x, y, clean, self.attack.budget(x), index, self.task.source[at])

    def _advance(self) -> None:
        """Some steps of every row; where memory ends, as before them and with fewer rows."""
        # A step gives a state new tensors and writes into none.
        before = {k: copy.copy(lane) for k, lane in self.lanes.items()}
        lanes = [lane for lane in self.lanes.values() if len(lane)]
        advance = lambda: self._together(lanes)  # noqa: E731
        if not self.task.subject.room.fits(advance, sum(self._lengths)):
            self.lanes = before
            self._park()

    def _together(self, lanes: list[State]) -> None:
        if self.attack.in_lanes:
            self.together(self._steps, lanes)
            return
        with threads(self.by.threads):  # small operations are not worth more
            for lane in lanes:
                self._steps(lane)

    def _steps(self, lane: State) -> None:
        for _ in range(self.attack.stride):
            self.attack.advance(self.asked, lane)

    def _settle(self, lane: State) -> None:
        """Rows that are done leave, once the model has judged what they have to show."""
        while bool((done := ~lane.active).any()):
            rows = done.nonzero().squeeze(1)
            leaving = done.index_put((rows,), self._judged(lane, rows))
            found = self.task.tally.round.to(leaving.device)
            overtaken = lane.round > found[lane.index]
            lane.keep(~(leaving | overtaken))

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


def _taken(rows: State, at: Tensor) -> State:
    taken = copy.copy(rows)
    taken.keep(at)
    return taken


def all_pairs(examples: Tensor, rounds: int) -> Tensor:
    """int64 [m, 2] (example, round), round by round."""
    numbers = torch.arange(rounds).repeat_interleave(len(examples))
    return torch.stack([examples.repeat(rounds), numbers], 1)
