"""Claim: each trick that shortens training has a price, and both can be read from one figure.

Trains each way of the recipe `time-to-robust` with two seeds and saves its Records under
results/time-to-robust, from which docs/time_to_robust.md and its figure are made. The seconds are
those of the training steps alone, on one thread; an evaluation does not count. A way that has its
Record is skipped and one that was cut short goes on, so this can be stopped at any time.
Run: make time-to-robust, then make docs. On one core about 50 minutes, evaluation included.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from spat.experiment import run
from spat.recipes.time_to_robust import WAYS, time_to_robust
from spat.records import Event
from spat.results import load_all, save

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "time-to-robust"
RUNS = ROOT / "runs" / "time-to-robust"


def is_measured(way: str, seed: int) -> bool:
    folder = RECORDS / way
    held = load_all(folder).values() if folder.is_dir() else ()
    return any(record.seeds["training"] == seed for record in held)


class Ending:
    """A sink that knows when training has ended."""

    reached = False

    def __call__(self, event: Event) -> None:
        self.reached = self.reached or event.kind == "end"


def go(way: str, seed: int, *, train_only: bool) -> None:
    """Train, or go on training, and evaluate; `train_only` leaves the evaluation for later."""
    folder = RUNS / f"{way}-{seed}"
    ending = Ending()
    finished = run(
        replace(time_to_robust(way), seed=seed),
        folder,
        sinks=(ending,),
        stop=lambda: train_only and ending.reached,
        resume=(folder / "settings.json").exists(),
    )
    if finished.record is None:
        print(f"{way}, seed {seed}: trained", flush=True)
        return
    (RECORDS / way).mkdir(parents=True, exist_ok=True)
    save(finished.record, RECORDS / way)
    told = {m.attack: f"{100 * m.value:.1f}" for m in finished.record.measured}
    print(f"{way}, seed {seed}: {finished.record.seconds} {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ways", nargs="*", help="names of ways; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--train-only", action="store_true", help="evaluate another time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in given.seeds:
        for way in given.ways or WAYS:
            if not is_measured(way, seed):
                go(way, seed, train_only=given.train_only)


if __name__ == "__main__":
    main()
