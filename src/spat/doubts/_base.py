"""What every doubt is: a frozen value that is called with a subject and returns a finding.

Levels are given on statistical grounds, as an audit sees few images: a share counts only as far as
its 95% interval reaches, so that one odd image raises no alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

from spat.doubts._subject import Subject
from spat.findings import Finding, Level, Number
from spat.results import wilson

GAP = (0.04, 0.08)  # points of robust accuracy: amber from the first, red above the second


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """One reason why a robust accuracy may be wrong; its file's name is its name."""

    advice = ""  # what to do when the finding is not green

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    def __call__(self, subject: Subject) -> Finding | None:
        """The finding, or None where the doubt does not apply to the attack or the model."""
        raise NotImplementedError

    def finding(self, level: Level, reason: str, **numbers: Number) -> Finding:
        return Finding(self.name, level, reason, "" if level == "green" else self.advice, numbers)


def share_level(k: int, n: int, *, amber: float, red: float) -> Level:
    """By the share that k of n examples surely exceed: the lower end of their 95% interval."""
    low = wilson(k, n)[0]
    return "red" if low > red else "amber" if low > amber else "green"


def gap_level(k: int, n: int) -> Level:
    """Of k among n examples that another attack breaks and the attack in question does not.

    Green below 4 points, amber to 8, red above; and the interval must lie above half of that.
    """
    amber, red = GAP
    low, gap = wilson(k, n)[0], k / n
    if gap > red and low > red / 2:
        return "red"
    return "amber" if gap >= amber and low > amber / 2 else "green"


def percent(k: int, n: int) -> str:
    return f"{100 * k / n:.0f}%"
