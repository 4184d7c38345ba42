"""A sweep's folder: a run folder for each run, sweep.json, and a Record of each finished run.

What the run folders hold decides what is left to do. sweep.json is for people and other programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from spat import config
from spat.config import AUTO, Flat
from spat.errors import UserError
from spat.folder import LOCK, locked
from spat.records import Record
from spat.results import load, read_json, save, write_json, write_text
from spat.sweep.task import Ending

SCHEMA = 1
State = Literal["new", "stopped", "finished"]


class Folder:
    """Where a sweep lies: nothing is written until it is `held`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.stop = self.path / "stop"  # once it is there, every run saves and ends
        self.records = self.path / "records"
        self._file = self.path / "sweep.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make it, or go on with it: for one process at a time."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"could not make the folder {self.path}: {error.strerror}.") from None
        with locked(self.path):
            self.stop.unlink(missing_ok=True)
            yield
            self.stop.unlink(missing_ok=True)

    def refuse_foreign(self) -> None:
        """A folder that holds something else is not to be filled with runs."""
        if self.path.exists() and not self._is_ours():
            raise UserError(f"{self.path} already exists and is no sweep; choose another --out.")

    def _is_ours(self) -> bool:
        if not self.path.is_dir():
            return False
        held = {path.name for path in self.path.iterdir()} - {LOCK}
        return not held or self._file.name in held

    def run(self, name: str) -> Path:
        return self.path / name

    def state(self, name: str) -> State:
        """The record is the last thing that a run writes."""
        folder = self.run(name)
        if (folder / "record.json").exists():
            return "finished"
        return "stopped" if (folder / "settings.json").exists() else "new"

    def refuse_changed(self, name: str, flat: Flat) -> None:
        """A run that was begun keeps its settings: half of it under others would be no result."""
        if self.state(name) == "new":
            return
        path = self.run(name) / "settings.json"
        saved = read_json(path)
        if not isinstance(saved, dict) or not isinstance(saved.get("settings"), dict):
            raise UserError(f"{path} is not a whole settings file.")
        before, now = saved["settings"], dict(flat)
        if now["batch_size"] == AUTO:  # which a run writes down as the number that it found
            now["batch_size"] = before.get("batch_size")
        if saved.get("hash") != config.digest(now):
            raise UserError(
                f"{self.run(name)} was begun with {_difference(before, now)}: "
                "undo that change, choose another --out, or remove that folder to begin it anew."
            )

    def record(self, name: str) -> Record:
        """The record of a finished run, kept among those of the sweep too."""
        record = load(self.run(name) / "record.json")
        save(record, self.records)
        return record

    def note(self, file: Path, flats: Mapping[str, Flat], endings: Mapping[str, Ending]) -> None:
        """Write sweep.json; runs that were not asked for this time stay in it as they were."""
        now = {
            name: {"hash": config.digest(flat), **_told(endings.get(name))}
            for name, flat in flats.items()
        }
        runs = {**self._noted(), **now}
        write_json(self._file, {"schema": SCHEMA, "file": str(file.absolute()), "runs": runs})

    def _noted(self) -> dict[str, Any]:
        """What sweep.json says; a broken one is written anew, since nothing depends on it."""
        try:
            saved = read_json(self._file)
        except UserError:
            return {}
        runs = saved.get("runs") if isinstance(saved, dict) else None
        return runs if isinstance(runs, dict) else {}

    def keep_trace(self, name: str, ending: Ending) -> None:
        """Where in the code it failed goes to a file, for an error that no sentence tells."""
        path = self.path / "failures" / f"{name}.txt"
        if ending.trace:
            write_text(path, ending.trace)
        elif ending.state == "finished":
            path.unlink(missing_ok=True)


def _told(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        return {"state": "waiting", "reason": ""}
    return {key: value for key, value in asdict(ending).items() if key != "trace"}


def _difference(saved: Flat, flat: Flat) -> str:
    """The first setting that is not as it was, in words."""
    now = {key: list(value) if isinstance(value, tuple) else value for key, value in flat.items()}
    keys = [key for key in {**saved, **now} if saved.get(key, _NO) != now.get(key, _NO)]
    if not keys:
        return "settings that were altered since"
    key, more = keys[0], len(keys) - 1
    was, is_now = (f"{side[key]!r}" if key in side else "nothing" for side in (saved, now))
    rest = f" (and {more} more that differ)" if more else ""
    return f"{key} {was}{rest}, and is now to have {is_now}"


_NO = object()
