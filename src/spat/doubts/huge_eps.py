"""A huge eps that does not bring the accuracy to zero: whoever holds then was not attacked."""

from __future__ import annotations

from dataclasses import dataclass

from spat.doubts._base import Doubt, share_level
from spat.doubts._subject import Subject, with_eps
from spat.doubts.larger_eps import widest
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class HugeEps(Doubt):
    """Under a budget that reaches every image of [0, 1], examples still hold.

    amber: share of examples that must surely be exceeded for amber
    red: the same for red
    """

    amber: float = 0.03
    red: float = 0.1
    advice = (
        "an attacker who may show any image must win: the attack fails for reasons of its own "
        "(masked gradients, a saturated loss, too few steps)."
    )

    def __call__(self, subject: Subject) -> Finding:
        eps = widest(subject)
        k = int(subject.holds(subject.craft(with_eps(subject.attack, eps))).sum())
        return self.finding(
            share_level(k, len(subject), amber=self.amber, red=self.red),
            f"with eps {eps:g}, which allows any image, {k} of {len(subject)} examples still hold.",
            held=k / len(subject),
            eps=eps,
        )
