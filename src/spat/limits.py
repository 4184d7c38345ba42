"""When an evaluation has seen enough images, as one writes it: `1pp` wide, or `5m` long."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from spat.errors import UserError
from spat.interval import interval

NONE = (None, "none")
WIDEST = 0.5  # an interval of any share lies within so much of its middle


@dataclass(frozen=True)
class Limits:
    """Two reasons to stop before all images are attacked; without one all of them are.

    within: half the width of the worst case's 95% interval that will do; 0: none will
    seconds: of the whole evaluation, interruptions not counted
    """

    within: float = 0.0
    seconds: float = math.inf

    def __bool__(self) -> bool:
        return self.within > 0 or self.seconds < math.inf


def limits(within: str | float | None, budget: str | float | None) -> Limits:
    """Read what a user wrote."""
    return Limits(
        within=0.0 if within in NONE else half_width(within),
        seconds=math.inf if budget in NONE else stretch(budget),
    )


def half_width(given: str | float | None) -> float:
    """`1pp`, percentage points, as a share; a bare number is a share already."""
    found = re.fullmatch(r"([\d.]+) *(pp|)", str(given).strip().lower())
    try:
        size = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    except ValueError:  # two points in a number
        size = 0.0
    if not 0 < size < WIDEST:
        raise UserError(
            "within must be half the width of an interval, above 0 and below 50 percentage points, "
            f"such as 1pp or 0.5pp, got {given!r}."
        )
    return size


def stretch(given: str | float | None) -> float:
    """Seconds; a bare number is minutes."""
    try:
        seconds = interval(str(given), "budget").seconds
    except UserError:
        seconds = math.inf
    if seconds == math.inf:
        raise UserError(f"budget must be a time such as 30s, 5m or 2h, got {given!r}.")
    return seconds
