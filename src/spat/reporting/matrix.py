"""The transfer matrix in text: a block an attack, a row a source, a column a target."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from spat.records import Transferred
from spat.reporting.table import aligned
from spat.reporting.wording import fraction, is_unicode, norm_name, showable
from spat.results.transferred import Cell, cells

LEGEND = (
    "rows: the model that the images were crafted on; columns: the model that they were tried on",
    "accuracy in % of all n images, with its 95% interval: right without attack and under it",
    "* white box: the model attacked itself",
)


def text_matrix(found: Transferred, *, plain: bool = False) -> str:
    """Every attack's matrix and what it means; `plain` keeps to ASCII."""
    rows = cells(found)
    blocks = [
        _block([row for row in rows if row.attack == attack], plain)
        for attack in dict.fromkeys(row.attack for row in rows)
    ]
    return "\n\n".join([*blocks, "\n".join(LEGEND)])


def print_matrix(found: Transferred, stream: TextIO | None = None) -> None:
    """Print it as far as the stream can show it."""
    stream = stream if stream is not None else sys.stdout
    text = text_matrix(found, plain=not is_unicode(stream))
    stream.write(showable(text, stream) + "\n")


def _block(rows: Sequence[Cell], plain: bool) -> str:
    """One attack: the targets' clean accuracy first, for what an attack leaves is less."""
    targets = {row.target: row for row in rows}
    body = [
        [source, *(_shown(row, plain) for row in rows if row.source == source)]
        for source in dict.fromkeys(row.source for row in rows)
    ]
    clean = ["without attack", *(f"{100 * row.clean:.1f}" for row in targets.values())]
    first = rows[0]
    eps = f"eps {fraction(first.eps)} ({norm_name(first.norm, plain)})"
    title = f"{first.attack}, {eps}, n = {first.n}"
    return "\n".join([title, *aligned([["crafted on", *targets], clean, *body], plain)])


def _shown(row: Cell, plain: bool) -> str:
    dash = "-" if plain else "\u2013"
    mark = "*" if row.white_box else ""
    return f"{100 * row.accuracy:.1f} ({100 * row.low:.1f} {dash} {100 * row.high:.1f}){mark}"
