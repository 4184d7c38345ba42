"""What something costs against what it brings: a named mark each, as an SVG that stands alone.

A thin upright line through a mark shows how far its value is certain. Marks of one group share a
colour and a shape; names stand beside them, moved up or down where they would cover each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spat.reporting.curves import COLOURS, Scale, px, text, ticks
from spat.reporting.markup import escape, tag

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 46, 48  # names stand to the right of their marks
LINE = 15  # pixels from one name to the next
LETTER = 6.7  # about the width of one
SIZE, AWAY = 8, 13  # half of a mark with a little air; from a mark to its name
STYLE = """
text{font:12px system-ui,sans-serif;fill:#444;text-anchor:middle;
paint-order:stroke;stroke:#fff;stroke-width:3px}
.end{text-anchor:end}.start{text-anchor:start}.label{fill:#111;font-size:13px}
.grid{stroke:#ddd}.axis{stroke:#777}.leader{stroke:#bbb}
"""


@dataclass(frozen=True)
class Mark:
    """A name at (x, y); y is certain to lie in [low, high]; `group` counts from 0."""

    name: str
    x: float
    y: float
    low: float
    high: float
    group: int = 0


def scatter(
    title: str, marks: Sequence[Mark], groups: Sequence[str], *, x_label: str, y_label: str
) -> str:
    """One SVG; x from 0, y from 0 to 100."""
    most = max((mark.x for mark in marks), default=1.0)
    x = Scale(0, 1.04 * most, LEFT, WIDTH - RIGHT)
    y = Scale(0, 100, HEIGHT - BOTTOM, TOP)
    name = re.sub(r"\W+", "-", title.lower())
    heights = _apart([(x(mark.x), y(mark.y), mark.name) for mark in marks])
    return tag(
        "svg",
        tag("title", escape(title), id=f"{name}-title"),
        tag("desc", escape(described(marks, x_label)), id=f"{name}-desc"),
        tag("style", STYLE),
        tag("rect", width=WIDTH, height=HEIGHT, fill="#fff"),
        *_axes(x, y, x_label, y_label),
        *(_legend(groups)),
        *(_drawn(mark, x, y, at) for mark, at in zip(marks, heights, strict=True)),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def described(marks: Sequence[Mark], x_label: str) -> str:
    """Every mark in words."""
    return " ".join(f"{mark.name}: {mark.y:.1f} at {x_label} {mark.x:.0f}." for mark in marks)


def _axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[str]:
    floor, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    middle = (TOP + floor) / 2
    lines = [tag("line", x1=LEFT, y1=px(y(t)), x2=end, y2=px(y(t)), class_="grid") for t in _tens()]
    return [
        *lines,
        *(text(LEFT - 8, y(t) + 4, f"{t}", "end") for t in _tens()),
        *(text(x(t), floor + 17, f"{t:g}") for t in ticks(x.low, x.high, 8)),
        tag("line", x1=LEFT, y1=floor, x2=end, y2=floor, class_="axis"),
        text((LEFT + end) / 2, HEIGHT - 10, x_label, "label"),
        text(16, middle, y_label, "label", transform=f"rotate(-90 16 {middle:g})"),
    ]


def _tens() -> range:
    return range(0, 101, 20)


def _legend(groups: Sequence[str]) -> list[str]:
    entries, at = [], float(LEFT)
    for group, name in enumerate(groups):
        entries += [_shape(group, at + 6, 20), text(at + 18, 24, name, "start")]
        at += 44 + LETTER * len(name)
    return entries


def _drawn(mark: Mark, x: Scale, y: Scale, name_at: float) -> str:
    across, up = x(mark.x), y(mark.y)
    whisker = {"x1": px(across), "x2": px(across), "y1": px(y(mark.low)), "y2": px(y(mark.high))}
    place = {"x1": px(across + 6), "y1": px(up), "x2": px(across + 11), "y2": px(name_at - 4)}
    return tag(
        "g",
        tag("line", **whisker, stroke=_colour(mark.group)),
        tag("line", **place, class_="leader"),
        _shape(mark.group, across, up),
        text(across + AWAY, name_at, mark.name, "start"),
    )


def _shape(group: int, across: float, up: float) -> str:
    """A disc, a square or a diamond."""
    colour = _colour(group)
    if group == 0:
        return tag("circle", cx=px(across), cy=px(up), r=5, fill=colour)
    turned = f"rotate(45 {px(across)} {px(up)})" if group == 2 else None
    x, y = px(across - 4.5), px(up - 4.5)
    return tag("rect", x=x, y=y, width=9, height=9, fill=colour, transform=turned)


def _colour(group: int) -> str:
    """Of the page's colours, as one that needs no page: `var(--blue, #0072b2)` is #0072b2."""
    return COLOURS[group].partition(", ")[2].rstrip(")")


def _apart(places: Sequence[tuple[float, float, str]]) -> list[float]:
    """Heights of names: each next to its mark, or on the nearest line below that is free."""
    taken = [(x - SIZE, x + SIZE, y + 4) for x, y, _ in places]  # of the marks themselves
    heights = [0.0] * len(places)
    for index in sorted(range(len(places)), key=lambda i: places[i][1]):
        x, y, name = places[index]
        left, height = x + AWAY, y + 4
        right = left + LETTER * len(name)
        for start, end, other in sorted(taken, key=lambda t: t[2]):
            if start < right and left < end and abs(other - height) < LINE:
                height = other + LINE
        taken.append((left, right, height))
        heights[index] = height
    return heights
