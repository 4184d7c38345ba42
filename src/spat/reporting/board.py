"""A live display of many runs: what each of them does now, and a line for each that has ended.

Events are those of the runs, with the run's name in `run`; one of kind `run` tells a new state.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spat.records import Event, Record
from spat.reporting.lines import Narrator, one_line
from spat.reporting.live import Display, Live, drawn_below
from spat.reporting.table import attack_names
from spat.reporting.wording import duration, fraction, listing, percent, showable

STATES = ("finished", "failed", "stopped", "running", "waiting")
ENDED = ("finished", "failed", "stopped")
FRAME_SECONDS = 0.5


class Board(Live):
    """Takes the events of many runs and shows them; plain lines where `Live` has them too."""

    def _opened(self, plain: bool) -> Display:
        return PlainBoard(self.stream) if plain else MovingBoard(self.stream)


@dataclass
class Runs:
    """What is known of each run by its name, from its events."""

    states: dict[str, str] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)
    narrators: dict[str, Narrator] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def __call__(self, event: Event) -> str | None:
        """Take an event; a line where it is one to keep, whatever happens next."""
        name = event.values.get("run")
        if name is None:
            return one_line(event.values.get("text", ""))
        if event.kind == "run":
            return self._change(str(name), event.values)
        line = self.narrators.setdefault(name, Narrator())(event)
        if event.kind == "start":
            self.states[name] = "running"
        elif line is not None:
            self.now[name] = line.text
        return self._kept(event.kind, str(name), line.text) if line is not None else None

    def _kept(self, kind: str, name: str, text: str) -> str | None:
        """What is to be known of every run alike is said once."""
        is_kept = kind == "epoch" or (kind == "note" and text not in self.said)
        if kind == "note":
            self.said.add(text)
        return f"{name}: {text}" if is_kept else None

    def _change(self, name: str, values: Any) -> str | None:
        state = str(values["state"])
        self.now.pop(name, None)
        self.states[name] = "waiting" if state == "lost" else state
        if values.get("earlier"):
            return None
        told = {"lost": f"{values.get('reason')} It goes on from its checkpoint."}
        told |= {"failed": f"failed: {values.get('reason')}", "stopped": "stopped"}
        text = finished(values["record"]) if state == "finished" else told.get(state, "")
        return one_line(f"[{self.done}/{len(self.states)}] {name}: {text}") if text else None

    @property
    def done(self) -> int:
        return sum(state in ENDED for state in self.states.values())

    def counts(self) -> str:
        found = Counter(self.states.values())
        return ", ".join(f"{found[state]} {state}" for state in STATES if found[state])


def finished(record: Record) -> str:
    """Its accuracies; a robust one never without its attacks."""
    shares = {row.attack: percent(row.value) for row in record.measured}
    clean = f"clean {shares['clean']}"
    if "worst" not in shares:
        return f"finished: {clean}"
    attacks = listing(attack_names(record.measured))
    threat = f"{attacks}, eps {fraction(record.eps)}, n {record.measured[0].n}"
    return f"finished: {clean}, worst case {shares['worst']} ({threat})"


class PlainBoard:
    """Every line that is to be kept, as it comes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.runs = Runs()

    def show(self, event: Event) -> None:
        line = self.runs(event)
        if line:
            self.stream.write(showable(line, self.stream) + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Nothing to tidy: every line was written out."""


class MovingBoard:
    """A line a running run below those that have ended; epochs are seen there, and pass."""

    def __init__(self, stream: TextIO) -> None:
        self.runs = Runs()
        self.begun, self.drawn = time.monotonic(), 0.0
        self.console = Console(file=stream, highlight=False, emoji=False)
        self.live = drawn_below(self.console, stream)

    def show(self, event: Event) -> None:
        line = self.runs(event)
        lasts = line and event.kind != "epoch"
        if lasts:
            self.console.print(Text(str(line)))
        now = time.monotonic()
        if lasts or now - self.drawn >= FRAME_SECONDS:
            self.drawn = now
            self.live.update(self._moving(), refresh=True)

    def close(self) -> None:
        self.live.stop()

    def _moving(self) -> RenderableType:
        """A name stays whole: what the run does takes the rest of the line."""
        running = [name for name, state in self.runs.states.items() if state == "running"]
        width = max(map(len, running), default=0)
        lines = [
            Text.assemble((name.ljust(width), "bold"), f"  {self.runs.now.get(name, 'begins')}")
            for name in running
        ]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        spent = duration(time.monotonic() - self.begun)
        return Group(*lines, Text(f"{self.runs.counts()}; {spent}", style="dim"))
