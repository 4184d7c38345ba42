"""The course of a training run, from its events: loss, validation accuracy, learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spat.records import Event
from spat.reporting.curves import Curve, Point, chart
from spat.reporting.markup import escape, tag
from spat.reporting.wording import is_number

Epochs = Mapping[float, Mapping[str, Any]]


def training(events: Sequence[Event]) -> str:
    """The charts, or nothing when no epoch was finished."""
    epochs = by_epoch(events)
    if not epochs:
        return ""
    charts = [_loss(epochs), _accuracy(epochs), _rate(epochs)]
    return tag("div", *filter(None, charts), class_="charts")


def by_epoch(events: Sequence[Event]) -> Epochs:
    """The values of each epoch; of one that a resumed run went through again, the last."""
    found: dict[float, Mapping[str, Any]] = {}
    for event in events:
        if event.kind == "epoch":
            at = event.values.get("epoch")
            found[float(at) if is_number(at) else len(found) + 1.0] = event.values
    return dict(sorted(found.items()))


def _loss(epochs: Epochs) -> str:
    return _figure("Training loss", [_curve("loss", epochs, "loss")], y_label="loss")


def _accuracy(epochs: Epochs) -> str:
    """Of the validation split; the attack's name is part of the line's."""
    attack = next((v["val_attack"] for v in epochs.values() if v.get("val_attack")), "attack")
    lines = [
        _curve("clean", epochs, "val_clean", 100),
        _curve(str(attack), epochs, "val_robust", 100),
    ]
    best = [at for at, values in epochs.items() if values.get("best")]
    mark = (best[-1], f"best: epoch {best[-1]:g}") if best else None
    return _figure(
        "Validation accuracy", lines, y_label="accuracy %", y_range=(0.0, 100.0), mark=mark
    )


def _rate(epochs: Epochs) -> str:
    return _figure("Learning rate", [_curve("learning rate", epochs, "lr")], y_label="lr")


def _figure(title: str, lines: Sequence[Curve], **options: Any) -> str:
    """A chart, unless there is nothing in it: a run without a validation split has no accuracy."""
    shown = [line for line in lines if any(y is not None for _, y in line.points)]
    if not shown:
        return ""
    drawn = chart(title, shown, x_label="epoch", **options)
    return tag("figure", tag("figcaption", escape(title)), drawn)


def _curve(name: str, epochs: Epochs, key: str, factor: float = 1.0) -> Curve:
    points: list[Point] = []
    for at, found in epochs.items():
        value = found.get(key)
        points.append((at, factor * float(value) if is_number(value) else None))
    return Curve(name, points)
