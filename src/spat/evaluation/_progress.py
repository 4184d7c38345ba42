"""Events of an evaluation that is under way: not more of them than anybody could read."""

from __future__ import annotations

import time
from collections.abc import Callable

from spat.evaluation._subject import Subject
from spat.evaluation._tally import Tally
from spat.records import Event

EVERY = 0.5  # seconds between two events of one attack, besides the last


class Progress:
    """Tells how much of an attack's stage is done, how many images hold, what time is left.

    Seconds and passes are those of the whole attack: the last event has what it cost.
    """

    def __init__(self, sink: Callable[[Event], None], subject: Subject) -> None:
        self.sink, self.subject, self.passes = sink, subject, subject.passes
        self.label = ""
        self.begun = self.stage_begun = self.told = time.monotonic()

    def __call__(self, label: str, share: float, tally: Tally) -> None:
        now = time.monotonic()
        if label != self.label:
            self.label, self.stage_begun, self.told = label, now, now
        if share < 1 and now - self.told < EVERY:
            return
        self.told = now
        n, left = int(tally.todo.sum()), (now - self.stage_begun) / max(share, 1e-3) * (1 - share)
        values = {"attack": label, "done": int(share * n), "n": n, "held": len(tally.left)}
        times = {"seconds": round(now - self.begun, 2), "eta_s": round(left, 1)}
        self.sink(Event("attack", {**values, **times, **self._work()}))

    def _work(self) -> dict[str, int]:
        """Of the whole attack so far."""
        before, now = self.passes, self.subject.passes
        return {"forwards": now[0] - before[0], "backwards": now[1] - before[1]}
