"""What a sweep is about to do, checked whole before anything is written."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spat import config
from spat.config import Flat
from spat.errors import UserError, unknown
from spat.forecast import build
from spat.resolve import resolve
from spat.sweep import grid
from spat.sweep.folder import Folder
from spat.sweep.grid import Run
from spat.sweep.task import Task


@dataclass(frozen=True)
class Sweep:
    """The runs of a file, in its order; `flats` are their settings with nothing left open."""

    file: Path
    runs: tuple[Run, ...]
    flats: Mapping[str, Flat]
    folder: Folder

    def tasks(self) -> list[Task]:
        """A task for each run that is not finished."""
        place = Path.cwd()
        return [
            Task(run.name, run.experiment, place, self.folder.run(run.name), self.folder.stop)
            for run in self.runs
            if self.folder.state(run.name) != "finished"
        ]


def planned(file: Path, flags: Mapping[str, Any], out: Path, only: Sequence[str] = ()) -> Sweep:
    """Read, resolve and check every run, so that a typo in the last costs nothing but itself.

    only: patterns such as `trades_*`; runs whose name fits none are left out
    """
    runs, folder = grid.read(file, flags), Folder(out)
    flats = _resolved(file, runs)
    folder.refuse_foreign()
    for run in runs:
        folder.refuse_changed(run.name, flats[run.name])
    kept = _chosen(runs, only)
    return Sweep(file, tuple(kept), {run.name: flats[run.name] for run in kept}, folder)


def _resolved(file: Path, runs: Sequence[Run]) -> dict[str, Flat]:
    """Runs that differ by their seed alone resolve alike: their data are loaded once."""
    kinds: dict[str, Flat] = {}
    found: dict[str, Flat] = {}
    for run in runs:
        kind = config.digest(config.flatten(replace(run.experiment, seed=0)))
        if kind not in kinds:
            kinds[kind] = _settings(file, run)
        found[run.name] = {**kinds[kind], "seed": run.experiment.seed}
    _refuse_same(file, runs, found)
    return found


def _settings(file: Path, run: Run) -> Flat:
    try:
        plan = resolve(run.experiment)
        build(plan)
    except UserError as error:
        raise UserError(f"{file}, run {run.name}: {error}") from None
    return plan.flat


def _refuse_same(file: Path, runs: Sequence[Run], flats: Mapping[str, Flat]) -> None:
    seen: dict[str, str] = {}
    for run in runs:
        hashed = config.digest(flats[run.name])
        if hashed in seen:
            raise UserError(
                f"{file} asks for the same run more than once ({seen[hashed]}, {run.name}): "
                "every setting is equal; keep one."
            )
        seen[hashed] = run.name


def _chosen(runs: Sequence[Run], patterns: Sequence[str]) -> list[Run]:
    names = [run.name for run in runs]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise unknown("run", pattern, names)
    fits = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
    return [run for run in runs if not patterns or run.name in fits]
