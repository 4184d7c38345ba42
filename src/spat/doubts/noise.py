"""Random noise as strong as the attack: the attack's direction is then no better than chance."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spat.doubts._base import Doubt, percent, share_level
from spat.doubts._subject import Subject
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Noise(Doubt):
    """Random perturbations lower the margin as much as the attack does, example by example.

    draws: random perturbations at the far end of the budget, of which the best counts
    amber: share of examples that must surely be exceeded for amber
    red: the same for red
    """

    draws: int = 10
    amber: float = 0.1
    red: float = 0.25
    advice = "the attack is blind: look at its gradient, its loss and its step size."

    def __call__(self, subject: Subject) -> Finding:
        margins = [subject.margin(subject.noisy(k)) for k in range(self.draws)]
        best, n = torch.stack(margins).amin(0), len(subject)
        k = int((best <= subject.adversarial_margin).sum())
        level = share_level(k, n, amber=self.amber, red=self.red)
        reason = (
            f"random noise is as strong as the attack on {percent(k, n)} of the examples "
            f"(best of {self.draws} draws)."
        )
        return self.finding(
            level,
            reason,
            noise_as_strong=k / n,
            held_noise=int((best > 0).sum()) / subject.total,
            held_attack=int(subject.held.sum()) / subject.total,
        )
