"""Where events go: a file of JSON lines, TensorBoard. A live display is the CLI's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from spat.errors import UserError
from spat.records import Event


class Sink(Protocol):
    """Anything that takes events."""

    def __call__(self, event: Event) -> None: ...


class JsonLines:
    """Append every event to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise UserError(f"could not write {path}: {error.strerror}.") from None

    def __call__(self, event: Event) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(event.to_json()) + "\n")
        except OSError as error:
            raise UserError(f"could not write {self.path}: {error.strerror}.") from None


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
    events = []
    for line in path.read_text().splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        events.append(Event(values.pop("kind"), values, values.pop("time")))
    return events
