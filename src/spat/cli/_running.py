"""Run an experiment in front of a person: live display, signals, the closing lines."""

from __future__ import annotations

import contextlib
from pathlib import Path

from spat.config import Experiment


def run_shown(
    given: Experiment, folder: Path, *, resume: bool = False, tensorboard: bool = False
) -> int:
    from spat.experiment import run
    from spat.reporting.live import Live
    from spat.reporting.table import print_table
    from spat.training.interrupt import interruptible

    with interruptible() as stop, Live() as live:
        finished = run(
            given,
            folder,
            sinks=(live,),
            stop=lambda: bool(stop),
            resume=resume,
            tensorboard=tensorboard,
        )
    if finished.outcomes is None:
        assert stop.signal is not None
        with contextlib.suppress(OSError):  # the terminal may be what was closed
            print(f"stopped; go on with: spat train --resume {folder}", flush=True)
        return 128 + stop.signal
    print_table(finished.outcomes)
    print(f"report: {folder / 'report.html'}")
    return 0
