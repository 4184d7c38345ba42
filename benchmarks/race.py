"""What every benchmark of speed shares: contenders take turns, the best turn of each counts.

A ratio of best turns in one run says little of the machine and much of the code. On a machine that
does other work besides, `--cpu-time` counts processor seconds: less exact, but of this process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from spat.fast import has_fast_bfloat16
from spat.results import hardware, write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "performance"
Run = Callable[[], object]
sys.path.append(str(ROOT / "tests"))  # the slow twin


class Apart:
    """A contender in a process of its own, for what it sets of its process is not for the others.

    make: what gives the contender, where it is to run, from `given`
    """

    def __init__(self, make: Callable[..., Run], *given: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, given), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def __call__(self) -> tuple[float, float]:
        """Wall and processor seconds of a turn."""
        self.pipe.send(None)
        wall, processor = self.pipe.recv()
        return wall, processor

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection, make: Callable[..., Run], given: tuple[object, ...]) -> None:
    run = make(*given)
    pipe.send("ready")
    while True:
        pipe.recv()
        wall, processor = time.perf_counter(), time.process_time()
        run()
        pipe.send((time.perf_counter() - wall, time.process_time() - processor))


@contextmanager
def apart(
    makers: Mapping[str, tuple[Callable[..., Run], *tuple[object, ...]]],
) -> Iterator[dict[str, Run]]:
    """Contenders, each in a process of its own, from what makes them and what that is given."""
    runs = {name: Apart(*maker) for name, maker in makers.items()}
    try:
        yield dict(runs)
    finally:
        for run in runs.values():
            run.end()


@dataclass(frozen=True)
class Claim:
    """A ratio that was measured, and the bar it must reach."""

    text: str
    ratio: float
    bar: float

    def show(self) -> str:
        verdict = "reached" if self.ratio >= self.bar else "MISSED"
        return f"{self.ratio:6.2f}  (bar {self.bar:g}: {verdict})  {self.text}"


@dataclass(frozen=True)
class Race:
    """rounds: turns of each contender"""

    rounds: int
    cpu_time: bool = False

    def __call__(self, contenders: Mapping[str, Run]) -> dict[str, float]:
        """The best seconds of each; a first turn, in which memory is claimed, is not counted."""
        for run in contenders.values():
            run()
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(self.rounds):
            for name, run in contenders.items():
                best[name] = min(best[name], self._seconds(run))
        return best

    def _seconds(self, run: Run) -> float:
        if isinstance(run, Apart):
            return run()[self.cpu_time]
        clock = time.process_time if self.cpu_time else time.perf_counter
        begun = clock()
        run()
        return clock() - begun


def from_flags(text: str | None, rounds: int) -> Race:
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each contender")
    parser.add_argument("--cpu-time", action="store_true", help="count processor seconds")
    given = parser.parse_args()
    return Race(given.rounds, given.cpu_time)


def report(name: str, race: Race, claims: list[Claim], **facts: Any) -> None:
    """Print the claims, and keep all that was measured for docs/performance.md."""
    for claim in claims:
        print(claim.show(), flush=True)
    machine = {
        **hardware(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "fast_bfloat16": has_fast_bfloat16("cpu"),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(
        RESULTS / f"{name}.json",
        {
            "claims": [asdict(claim) for claim in claims],
            "clock": "processor" if race.cpu_time else "wall",
            "rounds": race.rounds,
            "machine": machine,
            **facts,
        },
    )
