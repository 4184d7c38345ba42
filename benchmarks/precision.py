"""Claim: a model trained in low precision, or on a folded copy, is as robust as an exact one.

The same short training of SmallCNN with the same seeds, its inner attack and training passes in
exact float32, on the float32 copy and in bfloat16. For each seed the difference to exact of the
accuracy under PGD, and its interval over the seeds: zero must lie inside. Records go to
results/precision; a run that has one is skipped. On two cores about five minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from spat.config import Choice, Experiment, Training
from spat.experiment import next_free, run
from spat.records import Record
from spat.results import Spread, load_all, over_seeds, save

RECORDS = Path(__file__).parents[1] / "results" / "precision"
MODES: dict[str, dict[str, Any]] = {
    "exact": {"exact": True},
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
}
ATTACK = "pgd-20"


def experiment(mode: str, seed: int) -> Experiment:
    """Two epochs, at a budget that they are enough to learn for."""
    training = Training(epochs=2, lr=0.05, schedule="one-cycle", validation=0.05)
    return Experiment(
        defence=Choice("madry", {"attack.steps": 5, "attack.step_size": 0.03}),
        training=replace(training, validation_images=200, **MODES[mode]),
        attacks=(ATTACK,),
        eps=0.1,
        n=1000,
        seed=seed,
    )


def mode_of(record: Record) -> str:
    exact = record.settings.get("exact", False)
    return "exact" if exact else str(record.settings["precision"])


def accuracies(records: list[Record], attack: str = ATTACK) -> dict[str, dict[int, float]]:
    """Of each mode, by seed."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        value = min(m.value for m in record.measured if m.attack.partition(" ")[0] == attack)
        found.setdefault(mode_of(record), {})[int(record.seeds["training"])] = value
    return found


def differences(records: list[Record]) -> dict[str, Spread]:
    """To exact, over the seeds that both have."""
    held = accuracies(records)
    return {
        mode: over_seeds([own[seed] - held["exact"][seed] for seed in own.keys() & held["exact"]])
        for mode, own in held.items()
        if mode != "exact" and own.keys() & held.get("exact", {})
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modes", nargs="*", default=[*MODES], help="by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    RECORDS.mkdir(parents=True, exist_ok=True)
    done = {(mode_of(r), r.seeds["training"]) for r in load_all(RECORDS).values()}
    for seed in given.seeds:
        for mode in given.modes:
            if (mode, seed) in done:
                continue
            finished = run(experiment(mode, seed), next_free(Path("runs") / f"{mode}-{seed}"))
            assert finished.record is not None
            print(mode, seed, save(finished.record, RECORDS), flush=True)
    for mode, lost in differences(list(load_all(RECORDS).values())).items():
        noise = "within noise" if (lost.low or 0) <= 0 <= (lost.high or 0) else "NOT within noise"
        print(f"{mode} - exact: {lost.mean:+.4f} ({lost.low} to {lost.high}), {noise}")


if __name__ == "__main__":
    main()
