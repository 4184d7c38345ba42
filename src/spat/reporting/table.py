"""The final table: clean, each attack and the worst case, each with its interval, n and eps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from spat.records import BETWEEN, Measured, Outcomes, Record
from spat.reporting.markup import escape, table, tag
from spat.reporting.wording import fraction, is_unicode, norm_name, showable
from spat.results.measure import measured as measure

__all__ = ["fraction", "html_table", "print_table", "text_table"]
SPECIAL = ("clean", "worst")
Cells = list[str]
Found = Record | Outcomes


def text_table(found: Found, *, plain: bool = False) -> str:
    """The table as aligned text; `plain` keeps to ASCII."""
    rows = measurements(found)
    return "\n".join([*aligned(_cells(rows, found, plain), plain), closing(rows), *found.notes])


def aligned(rows: Sequence[Cells], plain: bool) -> list[str]:
    """Lines of a table whose first row is its head."""
    head, *body = rows
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    rule = "  ".join(("-" if plain else "\u2500") * width for width in widths)
    return [_aligned(head, widths), rule, *(_aligned(cells, widths) for cells in body)]


def print_table(found: Found, stream: TextIO | None = None) -> None:
    """Print it as far as the stream can show it."""
    stream = stream if stream is not None else sys.stdout
    text = text_table(found, plain=not is_unicode(stream))
    stream.write(showable(text, stream) + "\n")


def html_table(found: Found) -> str:
    """The same table as HTML, the closing sentence as its caption."""
    measured = measurements(found)
    head, *body = _cells(measured, found, plain=False)
    rows = [_row(row, cells) for row, cells in zip(measured, body, strict=True)]
    return table(closing(measured), head, rows, "numbers")


def measurements(found: Found) -> Sequence[Measured]:
    """A record holds its numbers (and published ones beside them); outcomes are counted."""
    return found.measured if isinstance(found, Record) else measure(found)


def closing(measured: Sequence[Measured]) -> str:
    """What the worst case means, or that nothing is said about robustness."""
    attacks = attack_names(measured)
    if not attacks:
        return "no attack was run: this says nothing about robustness"
    return (
        f"worst case = pointwise over {', '.join(attacks)}: "
        "an image counts only if none of these attacks breaks it"
    )


def attack_names(measured: Sequence[Measured]) -> list[str]:
    names = [row.attack for row in measured if row.attack not in SPECIAL]
    return [name for name in names if not is_stage(name)]


def shown(name: str) -> str:
    """A row's name; that of a stage says that the stages before it count too."""
    return "worst case" if name == "worst" else name.replace(BETWEEN, " after ")


def is_stage(name: str) -> bool:
    return BETWEEN in name


def interval(row: Measured, plain: bool = False) -> str:
    dash = "-" if plain else "\u2013"
    return f"{100 * row.low:.2f} {dash} {100 * row.high:.2f}"


def _cells(measured: Sequence[Measured], found: Found, plain: bool) -> list[Cells]:
    head = ["attack", "accuracy %", "95% interval", "n", f"eps ({norm_name(found.norm, plain)})"]
    body = [
        [
            shown(row.attack),
            f"{100 * row.value:.2f}",
            interval(row, plain),
            str(row.n),
            "0" if row.attack == "clean" else fraction(found.eps),
        ]
        for row in measured
    ]
    if any(row.published is not None for row in measured):
        head.append("published %")
        for row, cells in zip(measured, body, strict=True):
            cells.append("" if row.published is None else f"{100 * row.published:.2f}")
    return [head, *body]


def _aligned(cells: Cells, widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    first, *others = zip(cells, widths, strict=True)
    right = (cell.rjust(width) for cell, width in others)
    return "  ".join([first[0].ljust(first[1]), *right]).rstrip()


def _row(row: Measured, cells: Cells) -> str:
    name, *numbers = (escape(cell) for cell in cells)
    data = (tag("td", cell) for cell in numbers)
    return tag("tr", tag("th", name, scope="row"), *data, class_=row.attack in SPECIAL and "own")
