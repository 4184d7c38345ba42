"""Run a grid of experiments, side by side and to the end: defences, seeds, settings.

  spat sweep grid.toml --out runs/grid
  spat sweep grid.toml --out runs/grid --dry-run
  spat sweep grid.toml --out runs/grid --only 'trades_*' --workers 2 --epochs 5

The file holds settings, and a [grid] of lists: defence = ["spat", "trades"], seed = [0, 1, 2].
The same command goes on: finished runs stay, stopped and failed ones go on from their checkpoints.

Exit codes: 0 every run is finished, 1 at least one is not, 2 a mistake in the file or the command;
130, 143 or 129 stopped by Ctrl-C, SIGTERM or SIGHUP, when each run has saved.
"""

from __future__ import annotations

import contextlib
import math
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spat.cli._flags import Parser, parser, settings_from
from spat.errors import UserError

if TYPE_CHECKING:
    from spat.sweep.drive import Drive
    from spat.sweep.plan import Sweep


def run(arguments: Sequence[str]) -> int:
    options, flags = _parser().parse_known_args(arguments)
    if options.out is None:
        raise UserError("say where the runs go: --out runs/NAME.")

    from spat.sweep.plan import planned

    sweep = planned(options.file, settings_from(flags), options.out, options.only)
    return _dry_run(sweep) if options.dry_run else _carry_out(sweep, options)


def _parser() -> Parser:
    command = parser("sweep", __doc__ or "")
    command.add_argument("file", type=Path, help="a TOML file of settings with a [grid]")
    command.add_argument("--out", type=Path, help="the folder of the sweep, a new one or its own")
    command.add_argument("--dry-run", action="store_true", help="check and print the runs")
    command.add_argument("--only", nargs="+", default=[], help="runs by name; * stands for any")
    command.add_argument("--workers", type=_workers, help="at most so many runs at once")
    command.add_argument("--cpus-per-run", type=_cpus, default=1.0, help="cores and threads [1]")
    command.add_argument("--gpus-per-run", type=_gpus, help="[1 where there are any]")
    command.add_argument("--address", help="a Ray cluster, or auto; by default this machine alone")
    return command


def _dry_run(sweep: Sweep) -> int:
    states = {run.name: sweep.folder.state(run.name) for run in sweep.runs}
    for name, state in states.items():
        print(f"{name}  {state}")
    print(f"# {len(states)} runs, {sum(state == 'finished' for state in states.values())} finished")
    return 0


def _carry_out(sweep: Sweep, options: Namespace) -> int:
    from spat.reporting.board import Board
    from spat.sweep.cluster import Cluster
    from spat.sweep.drive import Drive
    from spat.training.interrupt import interruptible

    cluster = Cluster(options.address, options.workers, options.cpus_per_run, options.gpus_per_run)
    # The cluster comes first: it takes signals for itself, and leaves nothing behind if it fails.
    with cluster, interruptible() as stop, sweep.folder.held(), Board() as board:
        drive = Drive(sweep, cluster, board, lambda: bool(stop))
        drive.carry_out()
    with contextlib.suppress(OSError):  # the terminal may be what was closed
        _print(drive)
    states = {ending.state for ending in drive.endings.values()}
    if stop.signal is not None and states != {"finished"}:
        return 128 + stop.signal
    return 0 if states == {"finished"} else 1


def _print(drive: Drive) -> None:
    from spat.reporting.runs import print_runs

    sweep, endings = drive.sweep, drive.endings
    print_runs(
        {run.name: drive.records[run.name] for run in sweep.runs if run.name in drive.records},
        {run.name: run.group for run in sweep.runs},
        {run.name: endings[run.name].reason for run in sweep.runs if endings[run.name].reason},
    )
    if drive.records:
        print(f"records: {sweep.folder.records}")
    if any(ending.state == "stopped" for ending in endings.values()):
        print("stopped; the same command goes on")
    sys.stdout.flush()


def _workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def _cpus(text: str) -> float:
    cpus = _number(text)
    if cpus is None or cpus <= 0:
        raise ArgumentTypeError(f"must be a number such as 2 or 0.5, got {text!r}")
    return cpus


def _gpus(text: str) -> float:
    gpus = _number(text)
    if gpus is None or gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise ArgumentTypeError(
            f"must be a share of one such as 0.25, or a whole number, got {text!r}"
        )
    return gpus


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
