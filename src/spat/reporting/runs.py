"""The tables of many runs: each with its interval, and means over the seeds of those alike."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from spat.records import Measured, Record
from spat.reporting.table import Cells, aligned, closing, interval
from spat.reporting.wording import fraction, is_unicode, norm_name, showable
from spat.statistics import over_seeds

SHOWN = ("clean", "worst")


def print_runs(
    records: Mapping[str, Record],
    groups: Mapping[str, str],
    failed: Mapping[str, str],
    stream: TextIO | None = None,
) -> None:
    """Print all that is known, as far as the stream can show it.

    groups: of each run, what it shares with those that differ from it by their seed alone
    failed: the reason of each run that failed
    """
    stream = stream if stream is not None else sys.stdout
    plain = not is_unicode(stream)
    lines = [*_each(records, plain), *_means(records, groups, plain)]
    lines += [f"failed: {name}: {reason}" for name, reason in failed.items()]
    stream.write(showable("\n".join(lines) + "\n", stream) if lines else "")


def _each(records: Mapping[str, Record], plain: bool) -> list[str]:
    if not records:
        return []
    head = ["run", "clean %", "95% interval", "worst %", "95% interval", "n", "eps"]
    rows = [[name, *_cells(record, plain)] for name, record in records.items()]
    told = Counter(closing(record.measured) for record in records.values())
    notes = [text if len(told) == 1 else f"{text} (in {n} runs)" for text, n in told.items()]
    return [*aligned([head, *rows], plain), *notes]


def _cells(record: Record, plain: bool) -> Cells:
    rows = [_find(record, name) for name in SHOWN]
    told = [cell for row in rows for cell in _share(row, plain)]
    threat = f"{fraction(record.eps)} ({norm_name(record.norm, plain)})"
    return [*told, str(record.measured[0].n), threat]


def _find(record: Record, name: str) -> Measured | None:
    return next((row for row in record.measured if row.attack == name), None)


def _share(row: Measured | None, plain: bool) -> Cells:
    return ["", ""] if row is None else [f"{100 * row.value:.2f}", interval(row, plain)]


def _means(records: Mapping[str, Record], groups: Mapping[str, str], plain: bool) -> list[str]:
    """Of groups with two finished runs or more: one seed says nothing about the spread."""
    alike: dict[str, list[Record]] = {}
    for name, record in records.items():
        alike.setdefault(groups[name], []).append(record)
    several = {group: found for group, found in alike.items() if len(found) > 1}
    if not several:
        return []
    head = ["means over seeds", "seeds", "clean %", "95% interval", "worst %", "95% interval"]
    rows = [[group or "all", *_mean_cells(found, plain)] for group, found in several.items()]
    note = "intervals of means are Student's: of the spread between seeds, not of the images"
    return ["", *aligned([head, *rows], plain), note]


def _mean_cells(records: Sequence[Record], plain: bool) -> Cells:
    cells = [str(len(records))]
    for name in SHOWN:
        rows = [_find(record, name) for record in records]
        values = [row.value for row in rows if row is not None]
        cells += _share(_mean(name, values) if values else None, plain)
    return cells


def _mean(name: str, values: Sequence[float]) -> Measured:
    """With its interval, as far as that lies among the shares there are."""
    spread = over_seeds(values)
    low, high = (spread.mean if end is None else end for end in (spread.low, spread.high))
    return Measured(name, spread.mean, max(0.0, low), min(1.0, high), spread.n)
