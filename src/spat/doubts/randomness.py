"""Answers that differ from call to call: noise, random crops, dropout that eval mode leaves on.

Attacks follow the gradient of one draw and are judged on another. What they miss is luck, which a
repeated attacker has as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spat.doubts._base import Doubt, percent, share_level
from spat.doubts._subject import Subject
from spat.findings import Finding, Level


@dataclass(frozen=True, kw_only=True)
class Randomness(Doubt):
    """The same images get other logits when asked again, in eval mode.

    tolerance: difference of the logits, as a share of the largest, that rounding explains
    calls: forward passes that are compared with the first
    red: share of examples whose label changes that must surely be exceeded for red
    """

    tolerance: float = 1e-4
    calls: int = 4
    red: float = 0.01
    advice = (
        "fix the randomness, or average gradients over many draws and count an image as robust "
        "only if it holds in every one."
    )

    def __call__(self, subject: Subject) -> Finding:
        first, n = subject.logits(subject.x), len(subject)
        size = first.abs().max().clamp(min=1e-12)
        change, flips = 0.0, torch.zeros_like(subject.y, dtype=torch.bool)
        for _ in range(self.calls):
            again = subject.logits(subject.x)
            change = max(change, float((again - first).abs().max() / size))
            flips |= again.argmax(1) != first.argmax(1)
        k = int(flips.sum())
        numbers = {"change": change, "labels_that_change": k / n}
        if change <= self.tolerance:
            return self.finding("green", "the same image gets the same logits.", **numbers)
        level: Level = "red" if share_level(k, n, amber=1.0, red=self.red) == "red" else "amber"
        return self.finding(
            level,
            f"the output is random, also in eval mode: the logits of the same images differ by "
            f"{100 * change:.2g}% between calls, and {percent(k, n)} of the labels change.",
            **numbers,
        )
