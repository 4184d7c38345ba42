"""One self-contained HTML page about one run: the same inputs give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from spat.records import Event, Outcomes, Record
from spat.reporting.classes import by_class
from spat.reporting.markup import escape, pairs, scrolling, tag
from spat.reporting.pictures import Picture, grid
from spat.reporting.story import statement, tiles, title
from spat.reporting.style import CSS
from spat.reporting.table import html_table
from spat.reporting.training import training
from spat.reporting.wording import duration, fraction

BUDGETS = ("eps", "step_size")


def page(
    record: Record,
    outcomes: Outcomes,
    events: Sequence[Event] = (),
    pictures: Sequence[Picture] = (),
    class_names: Sequence[str] = (),
) -> str:
    """The whole report; a part for which there is nothing to show is left out."""
    sections = [
        _head(record),
        _section("Result", _result(record)),
        _section("Training", training(events)),
        _section("Images under attack", _images(pictures)),
        _section("Class by class", by_class(outcomes, class_names) if len(outcomes) else ""),
        _section("Attacks", _attacks(record)),
        _section("Settings", _settings(record)),
        _section("Provenance", pairs(_provenance(record, events))),
    ]
    body = tag("body", tag("main", *sections))
    return "<!doctype html>\n" + tag("html", _meta(record), body, lang="en") + "\n"


def _attacks(record: Record) -> str:
    """The settings of each, and what a reader of their numbers must know."""
    notes = "".join(tag("p", escape(note)) for note in record.notes)
    return (pairs(record.attacks) if record.attacks else "") + notes


def _meta(record: Record) -> str:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", escape(title(record))),
        tag("style", CSS),
    )


def _section(heading: str, content: str) -> str:
    return tag("section", tag("h2", heading), content) + "\n" if content else ""


def _head(record: Record) -> str:
    """What a reader in a hurry must see: the claim, its number, and every doubt about it."""
    parts = [
        tag("h1", escape(title(record))),
        tag("p", escape(statement(record))),
        tag("div", *(_tile(*each) for each in tiles(record)), class_="tiles"),
        _doubts(record.doubts),
    ]
    return tag("header", *parts)


def _tile(value: str, name: str, qualified: str) -> str:
    shown = tag("b", value) + escape(name) + tag("span", escape(qualified))
    return tag("div", shown, class_="tile")


def _doubts(doubts: Sequence[str]) -> str:
    if not doubts:
        return ""
    listed = tag("ul", *(tag("li", escape(doubt)) for doubt in doubts))
    return tag("div", tag("b", "Reasons to doubt these numbers"), listed, class_="doubts")


def _result(record: Record) -> str:
    return scrolling(html_table(record))


def _images(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    legend = (
        "Each image before and after the attack with what the model takes it for, and the "
        "difference magnified: grey is unchanged, brighter is more, darker is less."
    )
    return tag("p", legend) + grid(pictures)


def _settings(record: Record) -> str:
    shown = {key: _value(key, value) for key, value in record.settings.items()}
    return pairs(shown) if shown else ""


def _provenance(record: Record, events: Sequence[Event]) -> dict[str, str]:
    """Where the numbers come from; a name that starts two lists of values tells them apart."""
    seeds = {f"seed: {name}": str(seed) for name, seed in record.seeds.items()}
    times = {f"time: {name}": duration(spent) for name, spent in record.seconds.items()}
    how = {f"evaluation: {name}": str(value) for name, value in record.how.items()}
    machine = {f"hardware: {name}": str(value) for name, value in record.hardware.items()}
    return {
        "spat": record.version,
        "commit": record.commit,
        "settings hash": record.settings_hash,
        "weights (SHA-256)": record.weights_sha256,
        **seeds,
        **({"started": _started(events[0])} if events else {}),
        **times,
        **how,
        **machine,
        "doubts": "; ".join(record.doubts) or "none was recorded",
    }


def _started(event: Event) -> str:
    """In UTC: the page must not depend on where it is written."""
    return datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _value(key: str, value: Any) -> str:
    """A setting as it would be given again; budgets as the fractions people write."""
    if key.rpartition(".")[2] in BUDGETS and isinstance(value, float):
        return fraction(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
