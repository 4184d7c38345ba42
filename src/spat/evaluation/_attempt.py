"""One attack on one wave of images: taken up from its state, saved on the way and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from torch import Tensor

from spat.errors import UserError
from spat.evaluation._course import Course
from spat.evaluation._progress import Cost, Progress
from spat.evaluation._store import Place, Saved, Store
from spat.evaluation._subject import Examples, Subject
from spat.evaluation._tally import Tally
from spat.evaluation.plan import Planned
from spat.records import Attacked, Event
from spat.threat import Norm

Sink = Callable[[Event], None]
Keep = Callable[[str, Tensor, Tensor, Tensor], None]


class TimeIsUpError(Exception):
    """There is no time left; what was under way has been saved."""


@dataclass
class Clock:
    """Seconds spent on an evaluation, also by processes before this one."""

    limit: float
    before: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        return self.before + time.monotonic() - self.begun

    def check(self) -> None:
        if self.spent > self.limit:
            raise TimeIsUpError


@dataclass
class Bench:
    """What all waves of an evaluation share; `costs` are those of each attack so far."""

    subject: Subject
    x: Tensor
    y: Tensor
    ids: Tensor
    planned: Sequence[Planned]
    eps: float
    norm: Norm
    seed: int
    exact: bool
    store: Store
    clock: Clock
    sink: Sink
    keep: Keep
    costs: dict[str, Cost] = field(default_factory=dict)


class Attempt:
    """A course of an attack with its state.

    place: the wave and the attack
    saved: its state, if there is one
    is_part: whether the images are attacked in several waves
    """

    def __init__(
        self, bench: Bench, examples: Examples, place: Place, saved: Saved | None, *, is_part: bool
    ) -> None:
        self.bench, self.examples, self.place = bench, examples, place
        planned = bench.planned[place[1]]
        self.label = planned.label
        self.course = Course(planned, bench.subject, examples, bench.seed, exact=bench.exact)
        if saved is not None:
            self._take_up(saved)
        before = bench.costs.get(self.label, Cost())
        wave = place[0] + 1 if is_part else None
        self.progress = Progress(bench.sink, bench.subject, before, wave)

    def run(self) -> Attacked:
        if self.course.is_over:  # said once more, to those who add up what an attack costs
            self.progress(self.course.label, 1.0, self.course.tally)
        column = self.course.run(self._pause)
        self.bench.costs[self.label] = self.progress.cost
        return column

    def _take_up(self, saved: Saved) -> None:
        bench, meta = self.bench, saved.meta
        self.course.restore(saved.tensors, meta["where"])
        bench.subject.room.size = min(bench.subject.room.size, meta["room"])
        bench.clock.before = max(bench.clock.before, meta["spent"])
        bench.costs[self.label] = Cost(**meta["cost"])

    def _pause(self, label: str, share: float, tally: Tally) -> None:
        """Here the state is whole: whoever wants to stop the evaluation does so by raising."""
        try:
            self.progress(label, share, tally)
            self.bench.clock.check()
        except BaseException:
            self._save()
            raise
        if self.course.is_over or self.bench.store.is_due():
            self._try_to_save()

    def _try_to_save(self) -> None:
        """A save that fails ends nothing: the one before it is whole."""
        try:
            self._save()
        except UserError as error:
            text = f"{error} The evaluation goes on, and tries again at its next save."
            self.bench.sink(Event("note", {"text": text}))

    def _save(self) -> None:
        tensors, where = self.course.tensors()
        meta = {
            "where": where,
            "room": self.bench.subject.room.size,
            "spent": self.bench.clock.spent,
            "cost": asdict(self.progress.cost),
        }
        whole = tensors | {"clean": self.examples.clean}
        self.bench.store.save(self.place, whole, meta, is_over=self.course.is_over)
