"""A larger eps that does not help, and a huge one that does not reach zero.

With a budget that reaches every image of [0, 1] an attacker can show the model anything: whoever
is still right then was not attacked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spat.doubts._base import Doubt, percent, share_level
from spat.doubts._subject import Subject, with_eps
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class LargerEps(Doubt):
    """Twice the budget leaves the margin no lower.

    amber: share of examples that must surely be exceeded for amber; a blind attack gives a half
    red: the same for red
    """

    amber: float = 0.25
    red: float = 0.4
    advice = "the attack does not use its budget: look for masked gradients or too short steps."

    def __call__(self, subject: Subject) -> Finding | None:
        limit = widest(subject)
        eps = min(2 * float(subject.attack.eps), limit)
        if float(subject.attack.eps) > limit / 2:
            return None  # there is next to no room above it
        further = subject.margin(subject.craft(with_eps(subject.attack, eps)))
        k, n = int((further >= subject.adversarial_margin).sum()), len(subject)
        return self.finding(
            share_level(k, n, amber=self.amber, red=self.red),
            f"twice the eps does no better on {percent(k, n)} of the examples.",
            not_helped=k / n,
            eps=eps,
        )


def widest(subject: Subject) -> float:
    """The budget that reaches every image of [0, 1]."""
    return 1.0 if subject.attack.norm == "linf" else math.sqrt(subject.x[0].numel())
