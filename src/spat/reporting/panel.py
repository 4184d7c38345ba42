"""The moving part of the live display: a bar, the loss terms, validation, speed and time left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spat.reporting.lines import loss, place, validation
from spat.reporting.wording import count, duration, is_number, number

Values = Mapping[str, Any]


def training(step: Values, last_epoch: Values) -> RenderableType:
    """The step that was just made, and what the last epoch's end has shown."""
    places = [place(word, step.get(word), step.get(f"{word}s")) for word in ("epoch", "step")]
    rows = [
        _bar(
            "  ".join(filter(None, places)), step.get("step"), step.get("steps"), step.get("eta_s")
        ),
        _facts(loss(step), speed(step)),
    ]
    seen = validation(last_epoch)
    return Group(*rows, *([_facts(seen)] if seen else []))


def attack(values: Values) -> RenderableType:
    name, done, n = str(values.get("attack", "attack")), values.get("done"), values.get("n")
    held = count(values.get("held"))
    told = f"{held} of {count(n)} hold so far" if held else ""
    return Group(_bar(name, done, n, values.get("eta_s")), _facts(told))


def doubt(values: Values) -> RenderableType:
    where = f"audit: {values.get('doubt', '')}"
    return _bar(where, values.get("done"), values.get("n"), None)


def speed(values: Values) -> str:
    at = number(values.get("images_per_s"), ",.0f")
    return f"{at} images/s" if at else ""


def _bar(where: str, done: Any, total: Any, eta: Any) -> RenderableType:
    """The bar takes what the texts beside it leave."""
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    known = is_number(done) and is_number(total) and total > 0
    bar = ProgressBar(total=total, completed=done) if known else ProgressBar(total=1)
    left = duration(eta)
    row.add_row(Text(where, style="bold"), bar, Text(f"{left} left" if left else ""))
    return row


def _facts(*facts: str) -> Text:
    return Text("  ".join(filter(None, facts)), style="dim", overflow="fold")
