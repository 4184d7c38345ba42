"""Run an experiment in front of a person: live display, signals, the closing lines.

Of several processes the first shows and says everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spat.config import Experiment
from spat.world import ALONE, World

if TYPE_CHECKING:
    from spat.training.sinks import Sink

ECHO = 2.0  # seconds in which a launcher passes on what a process of its own has heard by itself


def run_shown(
    given: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    world: World = ALONE,
) -> int:
    from spat.experiment import run
    from spat.reporting.table import print_table
    from spat.training.interrupt import interruptible

    with interruptible(echo(world)) as stop, shown(world) as sinks:
        finished = run(
            given,
            folder,
            sinks=sinks,
            stop=lambda: bool(stop),
            resume=resume,
            tensorboard=tensorboard,
            world=world,
        )
        signal = max(world.gather(stop.signal or 0))
    if finished.outcomes is None:
        assert signal
        if world.first:
            with contextlib.suppress(OSError):  # the terminal may be what was closed
                print(f"stopped; go on with: spat train --resume {folder}", flush=True)
        return 128 + signal
    if world.first:
        print_table(finished.outcomes)
        print(f"report: {folder / 'report.html'}")
    return 0


def echo(world: World) -> float:
    return ECHO if world.size > 1 else 0.0


@contextlib.contextmanager
def shown(world: World) -> Iterator[list[Sink]]:
    """The live display, where this is the process that has one."""
    from spat.reporting.live import Live

    if not world.first:
        yield []
        return
    with Live() as live:
        yield [live]
