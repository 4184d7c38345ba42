"""Claim: every defence beats natural training under attack by a wide margin.

Trains each defence with the recipe `short-comparison` and saves its Record under
results/short-comparison, from which docs/comparison.md is generated. A defence that has a Record
is skipped, so an interrupted run goes on where it was.
Run: make comparison   (about a minute a defence on two cores), then make docs
"""

from __future__ import annotations

import sys
from pathlib import Path

from spat import catalog
from spat.experiment import next_free, run
from spat.recipes.short_comparison import short_comparison
from spat.reporting.live import Live
from spat.results import load_all, save

RECORDS = Path(__file__).parents[1] / "results" / "short-comparison"
VARIANTS = ["mail-at", "mail-trades", "mail-mart", "awp-trades", "spat-detached"]


def wanted() -> list[str]:
    """Every defence, those that only exist as presets by these."""
    own = [name for name in catalog.names("defence") if name not in ("mail", "awp")]
    return sys.argv[1:] or [*own, *VARIANTS]


def main() -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    done = {str(record.settings["defence"]) for record in load_all(RECORDS).values()}
    for name in wanted():
        if name in done:
            continue
        folder = next_free(Path("runs") / f"short-{name}")
        with Live() as live:
            finished = run(short_comparison(name), folder, sinks=(live,))
        assert finished.record is not None
        print(name, save(finished.record, RECORDS), flush=True)


if __name__ == "__main__":
    main()
