"""One run of a sweep, as the process that was given it sees it."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from spat.config import Experiment
from spat.errors import UserError
from spat.experiment import load_run, run


@dataclass(frozen=True)
class Task:
    """What a worker is told.

    place: the folder that relative paths in the settings start from
    folder: the run's own
    stop: a file; once it is there, the run saves and ends
    threads: of torch
    """

    name: str
    experiment: Experiment
    place: Path
    folder: Path
    stop: Path
    threads: int = 1


@dataclass(frozen=True)
class Ending:
    """How a run ended; `lost` if its process did, and it could say nothing.

    trace: where in the code, for an error that is no user's
    """

    state: Literal["finished", "stopped", "failed", "lost"]
    reason: str = ""
    trace: str = ""


def attempt(task: Task) -> Ending:
    """Begin the run, or go on with it, and tell how it ended: no error leaves this process."""
    if task.stop.exists():
        return Ending("stopped")
    try:
        os.chdir(task.place)
        torch.set_num_threads(task.threads)
        resume = (task.folder / "settings.json").exists()
        given = load_run(task.folder) if resume else task.experiment
        finished = run(given, task.folder, stop=task.stop.exists, resume=resume)
    except UserError as error:
        return Ending("failed", str(error))
    except Exception as error:  # a run that fails must not end the others
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Ending("failed", text, traceback.format_exc())
    return Ending("stopped" if finished.record is None else "finished")
