"""Steps too few or too short to cross the ball: steps x step size below 2 eps."""

from __future__ import annotations

from dataclasses import dataclass

from spat.attacks._base import Attack
from spat.doubts._base import Doubt
from spat.doubts._subject import Subject
from spat.findings import Finding, Level

SLACK = 1e-6  # of rounding


@dataclass(frozen=True, kw_only=True)
class Reach(Doubt):
    """Steps x step size is below 2 eps: from one side of the ball the other is out of reach."""

    advice = "take more or longer steps: steps x step size should be at least 2 eps."

    def __call__(self, subject: Subject) -> Finding | None:
        way = reach(subject.attack)
        if way is None:
            return None
        level: Level = "amber" if way < 2 - SLACK else "green"
        return self.finding(level, f"steps x step size is {way:.3g} eps.", reach=way)


def reach(attack: Attack) -> float | None:
    """How far an attack's steps can lead, in eps; None for one that chooses its own step size."""
    if not hasattr(attack, "step_size"):
        return None
    steps, size = attack.steps, attack.step_size  # type: ignore[attr-defined]
    if size is None:
        return 2.0 if steps else 0.0
    return float(steps * size / float(attack.eps))
