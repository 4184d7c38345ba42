"""Curves as inline SVG: labelled axes, a title and a description for those who cannot see them.

Lines differ by dash and marker as well as by colour, and the colours (Okabe and Ito's) are told
apart with any colour vision; the page may set them for a dark background.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeGuard

from spat.reporting.markup import escape, tag

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 34, 44
LETTER = 6.5  # about the width of one, to place the legend
COLOURS = ("var(--blue, #0072b2)", "var(--orange, #d55e00)", "var(--green, #009e73)")
DASHES = (None, "6 4", "2 3")
MARKED = 40  # points beyond which markers would run into each other
Point = tuple[float, float | None]


@dataclass(frozen=True)
class Curve:
    """A named line; a point without a finite y is a gap."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Scale:
    """The straight map of [low, high] to pixels [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    mark: tuple[float, str] | None = None,
) -> str:
    """One SVG. `y_range` is by default from 0 to the largest value; `mark` names an x."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points if _finite(y)]
    x = Scale(*_widened(min(xs, default=0), max(xs, default=1)), LEFT, WIDTH - RIGHT)
    low, high = y_range or _rounded(min([0.0, *ys]), max([0.0, *ys]))
    y = Scale(low, high, HEIGHT - BOTTOM, TOP)
    name = re.sub(r"\W+", "-", title.lower())
    return tag(
        "svg",
        tag("title", escape(title), id=f"{name}-title"),
        tag("desc", escape(described(curves, x_label)), id=f"{name}-desc"),
        *_axes(x, y, xs, x_label, y_label),
        *(_mark(x, *mark) if mark else ()),
        *(_drawn(curve, index, x, y) for index, curve in enumerate(curves)),
        *_legend([curve.name for curve in curves]),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        class_="chart",
    )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values within [low, high], in steps of 1, 2 or 5 times a power of ten."""
    step = _step(low, high, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def described(curves: Sequence[Curve], x_label: str) -> str:
    """Each line by its first and last value: what a glance at the picture tells."""
    return " ".join(_described(curve, x_label) for curve in curves)


def _described(curve: Curve, x_label: str) -> str:
    seen = [(x, y) for x, y in curve.points if _finite(y)]
    if not seen:
        return f"{curve.name}: no values."
    (a, first), (b, last) = seen[0], seen[-1]
    return f"{curve.name}: {first:.4g} at {x_label} {a:g}, {last:.4g} at {x_label} {b:g}."


def _axes(x: Scale, y: Scale, xs: Sequence[float], x_label: str, y_label: str) -> list[str]:
    floor, whole = HEIGHT - BOTTOM, [t for t in ticks(x.low, x.high) if t == int(t)]
    below = [t for t in whole if min(xs, default=0) <= t <= max(xs, default=1)]
    middle = (TOP + floor) / 2
    turned = f"rotate(-90 14 {middle:g})"
    return [
        *(_grid(y(t), f"{t:g}") for t in ticks(y.low, y.high)),
        *(text(x(t), floor + 16, f"{t:g}") for t in below),
        tag("line", x1=LEFT, y1=floor, x2=WIDTH - RIGHT, y2=floor, class_="axis"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "label"),
        text(14, middle, y_label, "label", transform=turned),
    ]


def _grid(height: float, label: str) -> str:
    line = tag("line", x1=LEFT, y1=px(height), x2=WIDTH - RIGHT, y2=px(height), class_="grid")
    return line + text(LEFT - 6, height + 4, label, "end")


def _drawn(curve: Curve, index: int, x: Scale, y: Scale) -> str:
    """The line, broken at gaps, and its markers while there is room for them."""
    runs = [list(run) for ok, run in groupby(curve.points, lambda p: _finite(p[1])) if ok]
    places = [[(x(a), y(b)) for a, b in run if b is not None] for run in runs]
    style = _style(index)
    lines = [
        tag("polyline", points=" ".join(f"{px(a)},{px(b)}" for a, b in run), **style)
        for run in places
        if len(run) > 1
    ]
    crowded = len(curve.points) > MARKED
    shown = [at for run in places for at in run if len(run) == 1 or not crowded]
    return tag("g", *lines, *(_marker(index, a, b) for a, b in shown), class_="curve")


def _style(index: int) -> dict[str, Any]:
    return {"stroke": COLOURS[index % 3], "stroke_dasharray": DASHES[index % 3]}


def _marker(index: int, a: float, b: float) -> str:
    """A disc for the first line, a square for the others."""
    colour = COLOURS[index % 3]
    if index == 0:
        return tag("circle", cx=px(a), cy=px(b), r=3, fill=colour)
    return tag("rect", x=px(a - 3), y=px(b - 3), width=6, height=6, fill=colour)


def _legend(names: Sequence[str]) -> list[str]:
    """Above the plot, a sample of each line before its name; one line alone needs none."""
    entries, at = [], float(LEFT)
    for index, name in enumerate(names if len(names) > 1 else ()):
        entries.append(_entry(name, index, at))
        at += 48 + LETTER * len(name)
    return entries


def _entry(name: str, index: int, at: float) -> str:
    style = _style(index)
    sample = tag("line", x1=px(at), y1=14, x2=px(at + 24), y2=14, **style)
    text = tag("text", escape(name), x=px(at + 30), y=18, class_="start")
    return tag("g", sample, _marker(index, at + 12, 14), text, class_="curve")


def _mark(x: Scale, at: float, label: str) -> list[str]:
    """A thin upright line; its label keeps to the side where there is room."""
    place, floor = x(at), HEIGHT - BOTTOM
    to_left = place > (LEFT + WIDTH - RIGHT) / 2
    side = -5 if to_left else 5
    line = tag("line", x1=px(place), y1=TOP, x2=px(place), y2=floor, class_="mark")
    return [line, text(place + side, floor - 6, label, "end" if to_left else "start")]


def text(x: float, y: float, text: str, class_: str = "", **attributes: str) -> str:
    return tag("text", escape(text), x=px(x), y=px(y), class_=class_, **attributes)


def px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _widened(low: float, high: float) -> tuple[float, float]:
    """A single x stands in the middle."""
    return (low, high) if high > low else (low - 1, high + 1)


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Out to the next ticks, so that no line touches the frame."""
    if not high > low:
        return low, low + 1
    step = _step(low, high, 5)
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _step(low: float, high: float, about: int) -> float:
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
