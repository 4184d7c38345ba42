"""Claim: each trick that shortens training has a price, and both can be read from one figure.

Trains each way of the recipe `time-to-robust` with two seeds and saves its Records under
results/time-to-robust, from which docs/time_to_robust.md and its figure are made. A way that has
its Record is skipped and one that was cut short goes on, so this can be stopped at any time.

How long training takes is measured by itself, with --seconds: one update of each kind that a way
has (so many inner steps, images of this size), in turn with those of all other ways, on one thread;
the best turn counts, times the number of such updates. So no way is charged for what else the
machine did while it was trained; the wall time that the training did take is in its Record.
Run: make time-to-robust, then make docs. On two idle cores about fifteen minutes, evaluation too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from race import Race
from spat.defences._base import Progress
from spat.experiment import make_trainer, run
from spat.recipes.time_to_robust import WAYS, time_to_robust
from spat.resolve import resolve
from spat.results import hardware, load_all, save, write_json
from spat.training.loop import Trainer
from spat.training.schedule import ramped
from spat.training.sizes import image_scale

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "time-to-robust"
RUNS = ROOT / "runs" / "time-to-robust"
ROUNDS = 40  # so many that one falls between what else the machine does


def is_measured(way: str, seed: int) -> bool:
    folder = RECORDS / way
    held = load_all(folder).values() if folder.is_dir() else ()
    return any(record.seeds["training"] == seed for record in held)


def measure(way: str, seed: int) -> None:
    """Train, or go on training, and evaluate."""
    folder = RUNS / f"{way}-{seed}"
    resume = (folder / "settings.json").exists()
    finished = run(replace(time_to_robust(way), seed=seed), folder, resume=resume)
    assert finished.record is not None
    (RECORDS / way).mkdir(parents=True, exist_ok=True)
    save(finished.record, RECORDS / way)
    told = {m.attack: f"{100 * m.value:.1f}" for m in finished.record.measured}
    print(f"{way}, seed {seed}: {finished.record.seconds} {told}", flush=True)


@dataclass(frozen=True)
class Kind:
    """What an update costs by: inner steps, and the share of their side that images have."""

    steps: int
    scale: float


def kinds(trainer: Trainer) -> tuple[Counter[Kind], dict[Kind, int]]:
    """How many updates of each kind a run makes, and the last of each."""
    counts: Counter[Kind] = Counter()
    last: dict[Kind, int] = {}
    settings, defence = trainer.settings, trainer.defence
    for step in range(trainer.total):
        epoch = step // trainer.per_epoch + 1
        progress = Progress(epoch, settings.epochs, step, trainer.total)
        steps = ramped(defence, settings, progress).attack.steps
        attacked = defence.passes != "clean"
        kind = Kind(steps if attacked else 0, image_scale(settings, progress))
        counts[kind] += 1
        last[kind] = step
    return counts, last


def update(trainer: Trainer, step: int) -> Callable[[], object]:
    def one() -> None:
        trainer.counters.step = step
        list(trainer._train_one())

    return one


def time_updates() -> None:
    """Write down the seconds of training of each way."""
    counts: dict[str, dict[str, int]] = {}
    contenders: dict[str, Callable[[], object]] = {}
    for way in WAYS:
        trainer = make_trainer(resolve(time_to_robust(way)), None)
        held, last = kinds(trainer)
        names = {kind: f"{way}: {kind.steps} steps, scale {kind.scale:g}" for kind in held}
        counts[way] = {names[kind]: n for kind, n in held.items()}
        contenders |= {names[kind]: update(trainer, step) for kind, step in last.items()}
    best = Race(ROUNDS)(contenders)
    seconds = {way: sum(n * best[name] for name, n in held.items()) for way, held in counts.items()}
    machine = {**hardware(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    found = {"seconds": seconds, "an_update": best, "updates": counts, "rounds": ROUNDS}
    RECORDS.mkdir(parents=True, exist_ok=True)
    write_json(RECORDS / "seconds.json", {**found, "machine": machine})
    for way, value in seconds.items():
        print(f"{way}: {value:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ways", nargs="*", help="names of ways; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--seconds", action="store_true", help="time the updates, train nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.seconds:
        time_updates()
        return
    for seed in given.seeds:
        for way in given.ways or WAYS:
            if not is_measured(way, seed):
                measure(way, seed)


if __name__ == "__main__":
    main()
