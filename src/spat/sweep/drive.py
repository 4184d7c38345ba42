"""A sweep from its first run to its last: start what is left, watch it, keep what is done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from spat.errors import UserError
from spat.records import Event, Record
from spat.sweep.plan import Sweep
from spat.sweep.task import Ending, Task
from spat.training.sinks import Sink, Tail

LOOK_SECONDS = 0.5  # how often the run folders are looked at


class Pool(Protocol):
    """What runs tasks, each in a process of its own."""

    def start(self, task: Task) -> None: ...

    def ended(self, seconds: float) -> Iterable[tuple[str, Ending]]: ...


@dataclass
class Drive:
    """One pass over a sweep: `carry_out()` fills `endings`, and `records` of what is finished."""

    sweep: Sweep
    pool: Pool
    tell: Sink
    stop: Callable[[], bool]
    endings: dict[str, Ending] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def carry_out(self) -> None:
        tasks = {task.name: task for task in self.sweep.tasks()}
        tails = {name: Tail(task.folder / "events.jsonl") for name, task in tasks.items()}
        for run in self.sweep.runs:
            self.tell(Event("run", {"run": run.name, "state": "waiting"}))
        for run in self.sweep.runs:
            if run.name in tasks:
                self.pool.start(tasks[run.name])
            else:
                self._end(run.name, Ending("finished"), earlier=True)
        self._note()
        while len(self.endings) < len(self.sweep.runs):
            self._pass_on_a_stop()
            over = list(self.pool.ended(LOOK_SECONDS))
            self._look(tails)  # what a run did comes before how it ended
            for name, ending in over:
                if ending.state == "lost" and name not in self.lost:
                    self._begin_again(tasks[name], ending)
                else:
                    self._end(name, ending)
                    self._note()

    def _begin_again(self, task: Task, ending: Ending) -> None:
        """Once, from its checkpoint: a second time it is the run itself that cannot live."""
        self.lost.add(task.name)
        self.tell(Event("run", {"run": task.name, "state": "lost", "reason": ending.reason}))
        self.pool.start(task)

    def _pass_on_a_stop(self) -> None:
        """By a file, which every machine sees; a person may make it too."""
        if self.stop():
            with contextlib.suppress(OSError):
                self.sweep.folder.stop.touch()

    def _look(self, tails: Mapping[str, Tail]) -> None:
        for name, tail in tails.items():
            if name not in self.endings:
                for event in tail():
                    self.tell(replace(event, values={**event.values, "run": name}))

    def _end(self, name: str, ending: Ending, *, earlier: bool = False) -> None:
        if ending.state == "lost":
            ending = Ending("failed", f"for the second time, {ending.reason}")
        if ending.state == "finished":
            try:
                self.records[name] = self.sweep.folder.record(name)
            except UserError as error:
                ending = Ending("failed", str(error))
        with contextlib.suppress(UserError, OSError):  # a full disk must not end the other runs
            self.sweep.folder.keep_trace(name, ending)
        self.endings[name] = ending
        told = {"run": name, "state": ending.state, "reason": ending.reason, "earlier": earlier}
        self.tell(Event("run", {**told, "record": self.records.get(name)}))

    def _note(self) -> None:
        """What becomes of a sweep does not hang on the file that tells of it."""
        try:
            self.sweep.folder.note(self.sweep.file, self.sweep.flats, self.endings)
        except UserError as error:
            self.tell(Event("note", {"text": str(error)}))
