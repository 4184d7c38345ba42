"""Class by class: accuracy with and without attack, and what is taken for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spat.records import Ints, Outcomes
from spat.reporting.markup import escape, scrolling, table, tag
from spat.reporting.wording import budget, listing, percent
from spat.results.classwise import class_count, confusion, most_confused
from spat.statistics import wilson

MANY = 20  # classes beyond which a full matrix is no longer read but searched
SHOWN = 15  # rows of the lists that then take its place


@dataclass(frozen=True)
class Counts:
    """Confusion without attack and in the worst case, which are one where no attack was run."""

    names: Sequence[str]
    clean: Ints
    worst: Ints

    @property
    def weakest_first(self) -> list[int]:
        """The classes that have images, by the share of them that hold."""
        present = [i for i, n in enumerate(self.worst.sum(1)) if n]
        return sorted(present, key=lambda i: self.worst[i, i] / self.worst[i].sum())


def by_class(outcomes: Outcomes, class_names: Sequence[str]) -> str:
    """The section: the weakest class in words, a row a class, and the confusion."""
    counts = counted(outcomes, class_names)
    case = "worst case" if outcomes.attacks else "no attack"
    many = len(counts.names) > MANY
    rows = counts.weakest_first
    title = f"The {SHOWN} weakest of {len(counts.names)} classes" if many else "Accuracy by class"
    return tag(
        "div",
        tag("p", escape(summary(outcomes, counts))),
        _accuracies(title, case, rows[:SHOWN] if many else sorted(rows), counts),
        _pairs(case, counts) if many else _matrix(case, counts),
    )


def counted(outcomes: Outcomes, class_names: Sequence[str]) -> Counts:
    """With names for all classes; one without a name is called by its number."""
    unnamed = range(len(class_names), class_count(outcomes))
    names = [*class_names, *map(str, unnamed)]
    clean, worst = (confusion(outcomes, len(names), attack) for attack in ("clean", "worst"))
    return Counts(names, clean, worst)


def summary(outcomes: Outcomes, counts: Counts) -> str:
    """The weakest class, and against what; then the classes that no image was taken for."""
    weakest = counts.weakest_first[0]
    held, n = int(counts.worst[weakest, weakest]), int(counts.worst[weakest].sum())
    over = f"in the worst case over {listing(list(outcomes.attacks))}, "
    against = over + budget(outcomes.eps, outcomes.norm) if outcomes.attacks else "without attack"
    told = f"The weakest class is {counts.names[weakest]}: of its {n} images {percent(held / n)}"
    return f"{told} hold {against}.{_never(counts)}"


def _never(counts: Counts) -> str:
    seen = counts.worst.sum(0)
    never = [name for name, k in zip(counts.names, seen, strict=True) if not k]
    more = [f"{len(never) - SHOWN} more"] if len(never) > SHOWN else []
    return f" Never predicted: {listing([*never[:SHOWN], *more])}." if never else ""


def _accuracies(title: str, case: str, rows: Sequence[int], counts: Counts) -> str:
    head = ("class", "n", "clean %", f"{case} %", "95% interval", "")
    body = [
        _accuracy(counts.names[i], counts.clean[i, i], counts.worst[i, i], counts.worst[i].sum())
        for i in rows
    ]
    return scrolling(table(title, head, body, "numbers titled"))


def _accuracy(name: str, clean: np.int64, held: np.int64, n: np.int64) -> str:
    low, high = wilson(int(held), int(n))
    cells = [
        str(n),
        f"{100 * clean / n:.1f}",
        f"{100 * held / n:.1f}",
        f"{100 * low:.1f} \u2013 {100 * high:.1f}",
    ]
    bar = tag("i", style=f"width:{100 * held / n:.1f}%", class_="bar")
    shown = (tag("td", cell) for cell in cells)
    return tag("tr", tag("th", escape(name), scope="row"), *shown, tag("td", bar, class_="bars"))


def _matrix(case: str, counts: Counts) -> str:
    """Rows are labels, columns what they are taken for; the darker, the larger the row's share."""
    head = ("label \u2193 \u00a0 taken for \u2192", *counts.names)
    rows = zip(counts.names, counts.worst.tolist(), strict=True)
    body = [_heat_row(name, label, row) for label, (name, row) in enumerate(rows)]
    return scrolling(table(f"Confusion ({case}): images by class", head, body, "heat titled"))


def _heat_row(name: str, label: int, counts: Sequence[int]) -> str:
    total = sum(counts)
    cells = (_heat_cell(k, total, i == label) for i, k in enumerate(counts))
    return tag("tr", tag("th", escape(name), scope="row"), *cells)


def _heat_cell(k: int, total: int, right: bool) -> str:
    """Blue where it is right, orange where it is wrong; pale enough for text on either ground."""
    if not k:
        return tag("td", "\u00b7", class_="none")
    share = k / total
    kind = "right" if right else "wrong"
    return tag("td", str(k), class_=kind, style=f"--share:{share:.3f}", title=percent(share))


def _pairs(case: str, counts: Counts) -> str:
    body = [
        tag(
            "tr",
            tag("th", escape(counts.names[pair.label]), scope="row"),
            tag("td", escape(counts.names[pair.predicted])),
            tag("td", f"{pair.count} of {pair.n}"),
        )
        for pair in most_confused(counts.worst, SHOWN)
    ]
    head = ("label", "taken for", "images")
    return scrolling(table(f"Most confused ({case})", head, body, "numbers titled"))
