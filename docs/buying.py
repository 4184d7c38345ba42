"""docs/time_to_robust.md and its figure, from the Records of `benchmarks/time_to_robust.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spat.recipes.time_to_robust import WAYS
from spat.records import Record
from spat.reporting.scatter import Mark, scatter
from spat.results import load_all, over_seeds, read_json

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Measured:
    """One way of training: its Records by seed, and the seconds that it trains for."""

    way: str
    records: list[Record]
    seconds: float

    def by_seed(self, name: str) -> list[float]:
        """The accuracy that is `clean` or `worst`."""
        records = sorted(self.records, key=lambda record: record.seeds["training"])
        return [100 * m.value for record in records for m in record.measured if m.attack == name]

    def mean(self, name: str) -> float:
        return over_seeds(self.by_seed(name)).mean

    @property
    def range(self) -> tuple[float, float]:
        """What the 95% intervals of all seeds span, of the worst case."""
        rows = [m for record in self.records for m in record.measured if m.attack == "worst"]
        return 100 * min(m.low for m in rows), 100 * max(m.high for m in rows)

    @property
    def group(self) -> int:
        if self.way.startswith("resnet"):
            return 2
        return 0 if WAYS[self.way].settings.get("defence", "spat").startswith("spat") else 1

    @property
    def row(self) -> str:
        low, high = self.range
        cells = f"{self.seconds:.0f} | {self.mean('clean'):.1f} | {self.mean('worst'):.1f}"
        each = ", ".join(f"{value:.1f}" for value in self.by_seed("worst"))
        cells += f" | {each} | {low:.1f} to {high:.1f}"
        return f"| `{self.way}` | {WAYS[self.way].about} | {cells} |"


def measured_ways() -> list[Measured]:
    """Those that have Records and a time, quickest first."""
    folder = ROOT / "results" / "time-to-robust"
    path = folder / "seconds.json"
    seconds = read_json(path)["seconds"] if path.exists() else {}
    found = {way: folder / way for way in WAYS if way in seconds and (folder / way).is_dir()}
    ways = [Measured(w, list(load_all(at).values()), seconds[w]) for w, at in found.items()]
    return sorted(ways, key=lambda one: one.seconds)


def page(note: str) -> str:
    """The table and the figure of `benchmarks/time_to_robust.py`."""
    ways = measured_ways()
    lines = [note, "# What a minute of training buys", ""]
    if not ways:
        return "\n".join([*lines, "No Records yet: run `benchmarks/time_to_robust.py`.", ""])
    first = ways[0].records[0]
    return "\n".join(
        [
            *lines,
            "![robust accuracy against seconds of training](time_to_robust.svg)",
            "",
            "LeNet-5 on the embedded MNIST images (the ResNet-18 has an eighth of its width), "
            f"{first.norm} eps {first.eps:g}; recipe `time-to-robust`. One engine, batches of "
            f"{first.settings['batch_size']}, one-cycle rate with a peak of "
            f"{first.settings['lr']} where nothing else is said, SPAT with detached gains; the "
            "best epoch is chosen on held-out training images. Robust: the worst case over "
            "APGD-CE with 50 steps and targeted APGD with 20 steps a class, whose loss no scale "
            f"of the logits weakens, on the first {first.measured[0].n} test images; means over "
            "the seeds, and the range that the 95% intervals of all seeds span. Seconds are those "
            "of the training steps alone on one thread of one core: the best of "
            "several turns of an update of each kind, times their number. Short runs on a small "
            "task: the order may be another on yours, and "
            "[cheaper training](cheaper.md) says what to make of it.",
            "",
            f"Hardware: {first.hardware['processor']}.",
            "",
            "| way | what it is | seconds | clean % | robust % | each seed | range |",
            "|---|---|---|---|---|---|---|",
            *(way.row for way in ways),
            "",
        ]
    )


def figure() -> str:
    """The same as a picture."""
    marks = [
        Mark(way.way, way.seconds, way.mean("worst"), *way.range, way.group)
        for way in measured_ways()
    ]
    return scatter(
        "Robust accuracy against seconds of training",
        marks,
        ["SPAT", "other defences", "ResNet-18, an eighth as wide"],
        x_label="seconds of training, one thread",
        y_label="robust accuracy, %",
    )
