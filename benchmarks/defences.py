"""Claim: every defence beats natural training under attack by a wide margin.

Trains each defence with the recipe `short-comparison`, with three seeds, and saves its Records
under results/short-comparison, from which docs/comparison.md is generated. A run that has a Record
is skipped, so an interrupted comparison goes on where it was.
Run: make comparison, then make docs. On two cores a run takes about ten minutes, AutoAttack
included; on a GPU half a minute, and several of them fit side by side, each with names of its own.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from spat import catalog
from spat.experiment import next_free, run
from spat.recipes.short_comparison import short_comparison
from spat.reporting.live import Live
from spat.results import load_all, save

RECORDS = Path(__file__).parents[1] / "results" / "short-comparison"
VARIANTS = ["mail-at", "mail-trades", "mail-mart", "awp-trades", "spat-detached"]


def everything() -> list[str]:
    """Every defence, those that only exist as presets by these."""
    return [*(n for n in catalog.names("defence") if n not in ("mail", "awp")), *VARIANTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="defences; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    RECORDS.mkdir(parents=True, exist_ok=True)
    records = load_all(RECORDS).values()
    done = {(record.settings["defence"], record.seeds["training"]) for record in records}
    runs = [(name, seed) for seed in given.seeds for name in given.names or everything()]
    for name, seed in runs:
        if (name, seed) in done:
            continue
        folder = next_free(Path("runs") / f"short-{name}-{seed}")
        with Live() as live:
            finished = run(replace(short_comparison(name), seed=seed), folder, sinks=(live,))
        assert finished.record is not None
        print(name, save(finished.record, RECORDS), flush=True)


if __name__ == "__main__":
    main()
