"""What an audit finds: one Finding a doubt, and the verdict over all. Nothing imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["green", "amber", "red"]
Number = float | int | str | None | list[float] | list[str]
LEVELS: tuple[Level, ...] = ("green", "amber", "red")
VERDICTS: Mapping[Level, str] = {
    "green": "the robustness looks real",
    "amber": "there are doubts: look at them before you quote the robustness",
    "red": "do not trust it",
}


@dataclass(frozen=True)
class Finding:
    """What one doubt came to: a level, one sentence that says why, what to do, and the numbers."""

    doubt: str
    level: Level
    reason: str
    advice: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        """One line for a Record."""
        return f"{self.level}: {self.doubt}: {self.reason}"


@dataclass(frozen=True)
class Audit:
    """All findings about one model under one attack, in the order of the doubts' names.

    attack: the attack in question, with all its settings
    clean: how many of the n images are right without attack
    held: how many of them that attack does not break
    """

    findings: tuple[Finding, ...]
    attack: str
    eps: float
    norm: str
    n: int
    clean: int
    held: int

    @property
    def level(self) -> Level:
        """That of the worst finding."""
        return max((one.level for one in self.findings), key=LEVELS.index, default="green")

    @property
    def verdict(self) -> str:
        return VERDICTS[self.level]

    @property
    def flagged(self) -> tuple[Finding, ...]:
        """What is not green, red first."""
        doubtful = (one for one in self.findings if one.level != "green")
        return tuple(sorted(doubtful, key=lambda one: -LEVELS.index(one.level)))

    def __getitem__(self, doubt: str) -> Finding:
        found = {one.doubt: one for one in self.findings}
        return found[doubt]

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level, "verdict": self.verdict, **asdict(self)}
