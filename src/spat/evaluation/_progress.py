"""Events of an evaluation that is under way: not more of them than anybody could read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spat.evaluation._subject import Subject
from spat.evaluation._tally import Tally
from spat.records import Event

EVERY = 0.5  # seconds between two events of one attack, besides the last


@dataclass(frozen=True)
class Cost:
    """What an attack has cost so far."""

    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0


class Progress:
    """Tells how much of an attack's stage is done, how many images hold, what time is left.

    Seconds and passes are those of the whole attack: the last event has what it cost.
    before: what it cost when it was begun, in earlier waves or by a process that was stopped
    wave: its number, counted from 1, where the images are attacked in waves
    """

    def __init__(
        self, sink: Callable[[Event], None], subject: Subject, before: Cost, wave: int | None = None
    ) -> None:
        self.sink, self.subject, self.passes = sink, subject, subject.passes
        self.before, self.where = before, {} if wave is None else {"wave": wave}
        self.label, self.first = "", 0.0
        self.begun = self.stage_begun = self.told = time.monotonic()

    def __call__(self, label: str, share: float, tally: Tally) -> None:
        now = time.monotonic()
        if (
            label != self.label
        ):  # what a stopped process did before is no measure of this one's pace
            self.label, self.first, self.stage_begun, self.told = label, share, now, now
        if share < 1 and now - self.told < EVERY:
            return
        self.told = now
        n, cost = int(tally.todo.sum()), self.cost
        values = {"attack": label, "done": int(share * n), "n": n, "held": len(tally.left)}
        times = {
            "seconds": round(cost.seconds, 2),
            "eta_s": self._left(share, now - self.stage_begun),
        }
        work = {"forwards": cost.forwards, "backwards": cost.backwards}
        self.sink(Event("attack", {**values, **self.where, **times, **work}))

    def _left(self, share: float, seconds: float) -> float | None:
        done = share - self.first
        return round(seconds / done * (1 - share), 1) if done > 0 else None

    @property
    def cost(self) -> Cost:
        """Of the whole attack so far."""
        old, now = self.passes, self.subject.passes
        return Cost(
            self.before.seconds + time.monotonic() - self.begun,
            self.before.forwards + now[0] - old[0],
            self.before.backwards + now[1] - old[1],
        )
