"""Logits that depend on the other images of the batch: BatchNorm on batch statistics, say.

An attack changes the whole batch at once, which no attacker of one image can.
"""

from __future__ import annotations

from dataclasses import dataclass

from spat.doubts._base import Doubt
from spat.doubts._subject import Subject
from spat.findings import Finding

PROBES = 8


@dataclass(frozen=True, kw_only=True)
class Neighbours(Doubt):
    """An image gets other logits alone than in a batch.

    tolerance: difference of the logits, as a share of the largest, that rounding explains
    """

    tolerance: float = 0.01
    advice = (
        "normalise with running statistics (eval mode), so that each image is judged by itself."
    )

    def __call__(self, subject: Subject) -> Finding:
        x = subject.x[:PROBES]
        together, alone = subject.logits(x), [subject.logits(one[None]) for one in x]
        size = together.abs().max().clamp(min=1e-12)
        change = max(
            float((z[0] - row).abs().max() / size) for z, row in zip(alone, together, strict=True)
        )
        if change <= self.tolerance:
            return self.finding("green", "each image is judged by itself.", change=change)
        return self.finding(
            "amber",
            f"the logits of an image differ by {100 * change:.2g}% when it is alone: they depend "
            "on the batch, or on chance.",
            change=change,
        )
