"""Where events go: a file of JSON lines, TensorBoard. A live display is the CLI's."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import IO, Protocol

from spat.errors import UserError
from spat.records import Event

WAITING = 10_000  # events kept for a disk that has no room for them, the newest ones


class Sink(Protocol):
    """Anything that takes events."""

    def __call__(self, event: Event) -> None: ...


class JsonLines:
    """Append every event to a file, one JSON object a line.

    A disk that is full must not end a run: events wait in memory until they can be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: deque[str] = deque(maxlen=WAITING)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise UserError(f"could not write {path}: {error.strerror}.") from None

    def __call__(self, event: Event) -> None:
        self.waiting.append(json.dumps(event.to_json()) + "\n")
        try:
            with self.path.open("ab+") as file:
                mend = b"" if _ends_a_line(file) else b"\n"
                file.write(mend + "".join(self.waiting).encode())
        except OSError:
            return
        self.waiting.clear()


def _ends_a_line(file: IO[bytes]) -> bool:
    """Not so where a process was killed, or the disk filled up, in the middle of one."""
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


class TensorBoard:
    """The numbers of step and epoch events as curves."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "TensorBoard events need the package tensorboard: pip install 'spat[tensorboard]'."
            ) from None
        self.writer = SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        if event.kind not in ("step", "epoch"):
            return
        for name, value in event.values.items():
            if isinstance(value, (int, float)) and name not in ("step", "steps", "epochs"):
                tag = f"{event.kind}/{name}"
                self.writer.add_scalar(tag, value, event.values["step"], walltime=event.time)
        if event.kind == "epoch":
            self.writer.flush()


def read_events(path: Path) -> list[Event]:
    """The events of a JSON-lines file; a last line cut short by a kill is left out."""
    return _events(path.read_text())


class Tail:
    """The events that came to a JSON-lines file, which another process writes, since the last look.

    What is in it when the tail begins is old.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = path.stat().st_size if path.exists() else 0

    def __call__(self) -> list[Event]:
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                text = file.read()
        except OSError:  # it is not there yet
            return []
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be half-written
        self.at += len(whole)
        return _events(whole.decode(errors="replace"))


def _events(text: str) -> list[Event]:
    events = []
    for line in text.splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        events.append(Event(values.pop("kind"), values, values.pop("time")))
    return events
