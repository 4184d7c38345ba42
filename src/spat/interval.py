"""How often something is done, as one writes it: `10s`, `5m`, `2h` or `200steps`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from spat.errors import UserError

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Interval:
    """A stretch of time, or a number of steps: the other one is infinite."""

    seconds: float = math.inf
    steps: float = math.inf

    def is_over(self, *, seconds: float, steps: int) -> bool:
        """Whether so much time, or so many steps, since the last time are enough."""
        return seconds >= self.seconds or steps >= self.steps


def interval(text: str | float, name: str) -> Interval:
    """Read what a user wrote; a bare number is minutes."""
    found = re.fullmatch(r"([\d.]+(?:e-?\d+)?) *(s|m|h|steps?|)", str(text).strip().lower())
    try:
        size = float(found[1]) if found else 0.0
    except ValueError:  # two points in a number
        size = 0.0
    unit = found[2] if found else ""
    in_steps = unit.startswith("step")
    if not 0 < size < math.inf or (in_steps and size != int(size)):
        raise UserError(
            f"{name} must be a time or a number of steps such as 10s, 5m, 2h or 200steps, "
            f"got {text!r}."
        )
    return Interval(steps=size) if in_steps else Interval(seconds=size * SECONDS[unit or "m"])
