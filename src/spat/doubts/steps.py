"""More steps that do not help: where the gradient means something, many steps beat one."""

from __future__ import annotations

from dataclasses import dataclass

from spat.doubts._base import Doubt, percent, share_level
from spat.doubts._subject import Subject, changed
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Steps(Doubt):
    """All steps of the attack leave the margin no lower than a single one does.

    amber: share of examples that must surely be exceeded for amber; blind steps give about a half
    red: the same for red
    """

    amber: float = 0.2
    red: float = 0.35
    advice = "the steps do not climb: look for masked gradients, or a step size that overshoots."

    def __call__(self, subject: Subject) -> Finding | None:
        steps = getattr(subject.attack, "steps", 0)
        eps = subject.attack.eps
        one = changed(subject.attack, steps=1, step_size=eps) if steps > 1 else None
        if one is None:
            return None
        k = int((subject.margin(subject.craft(one)) <= subject.adversarial_margin).sum())
        n = len(subject)
        return self.finding(
            share_level(k, n, amber=self.amber, red=self.red),
            f"{steps} steps do no better than a single one on {percent(k, n)} of the examples.",
            not_helped=k / n,
            steps=steps,
        )
