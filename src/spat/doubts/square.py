"""Square, which sees no gradient, breaks what the attack with gradients does not."""

from __future__ import annotations

from dataclasses import dataclass

from spat.attacks.square import Square as Attack
from spat.doubts._base import Doubt, gap_level
from spat.doubts._subject import Subject
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Square(Doubt):
    """A black-box attack beats the white-box one.

    queries: squares tried on each example
    """

    queries: int = 500
    advice = "gradients are masked: report Square's result, and look for the cause in the model."

    def __call__(self, subject: Subject) -> Finding:
        attack = Attack(eps=subject.attack.eps, norm=subject.attack.norm, queries=self.queries)
        held = subject.holds(subject.craft(attack))
        k = int((subject.held & ~held).sum())
        return self.finding(
            gap_level(k, subject.total),
            f"Square with {self.queries} queries breaks {k} of {subject.total} images that the "
            "attack with gradients does not.",
            only_square=k / subject.total,
            held_square=int(held.sum()) / subject.total,
            held_attack=int(subject.held.sum()) / subject.total,
        )
