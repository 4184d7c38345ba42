"""Sees the two ways in which adversarial training fails while its loss looks well.

catastrophic overfitting (Wong et al., ICLR 2020)   one step of attack is withstood, several are not
    r <= s / 8   and   s - r >= 2 m
    r_b - r >= max(m, r_b / 2)   or   s >= 0.8 c            it held before, or never did
robust overfitting (Rice et al., ICML 2020)         robust on known images, less so on new ones
    r_b - r >= m   and   l < l_b,   `PATIENCE` epochs in a row

c, s, r: accuracy on validation images: clean, after one step of attack, after several
l: training loss.   _b: in the epoch of the largest r so far.   m: `margin`, beyond chance
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

PATIENCE = 3  # epochs: robust accuracy goes up and down from one to the next
PARTED = 8  # early in training three to five times as many withstand one step as several
LEAST = 0.05  # a fall by less is not worth a word


@dataclass(frozen=True)
class Reading:
    """What is known at the end of an epoch. `n` validation images, `loss` of training."""

    epoch: int
    clean: float
    single: float
    robust: float
    loss: float
    n: int

    @property
    def margin(self) -> float:
        """A difference that is not chance: two standard errors of a share near a half."""
        return max(LEAST, 1 / math.sqrt(self.n))


@dataclass(frozen=True)
class Watch:
    """What the guard remembers from epoch to epoch; a checkpoint holds it.

    best: the reading of the largest robust accuracy so far
    falling: so many epochs in a row have looked like robust overfitting
    told: of a trouble that is not over
    good: the epoch that a rollback leads to; 0: the start
    rollbacks: made so far
    """

    best: Reading | None = None
    falling: int = 0
    told: bool = False
    good: int = 0
    rollbacks: int = 0

    def after(self, now: Reading) -> Watch:
        """The memory once it has seen another epoch."""
        best = now if self.best is None or now.robust > self.best.robust else self.best
        falling = self.falling + 1 if _is_robust_overfitting(now, best) else 0
        return replace(self, best=best, falling=falling)

    def trouble(self, now: Reading) -> str:
        """What `now`, which it has already seen, shows: half a sentence, or nothing."""
        assert self.best is not None
        return _trouble(now, self.best, self.falling)

    def is_good(self, now: Reading) -> bool:
        """Whether an epoch is one to go back to."""
        assert self.best is not None
        return not self.trouble(now) and self.best.robust - now.robust < now.margin

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Watch:
        best = saved["best"]
        return cls(**{**saved, "best": None if best is None else Reading(**best)})


def _trouble(now: Reading, best: Reading, falling: int) -> str:
    if _is_catastrophic(now, best):
        return (
            f"catastrophic overfitting in epoch {now.epoch}: {now.single:.1%} of {now.n} "
            f"validation images withstand one step of attack, {now.robust:.1%} several"
        )
    if falling >= PATIENCE:
        return (
            f"robust overfitting since epoch {now.epoch - falling + 1}: the training loss falls, "
            f"but robust validation accuracy is {now.robust:.1%} of {now.n} images, after "
            f"{best.robust:.1%} in epoch {best.epoch}"
        )
    return ""


def _is_catastrophic(now: Reading, best: Reading) -> bool:
    parted = now.robust <= now.single / PARTED and now.single - now.robust >= 2 * now.margin
    fell = best.robust - now.robust >= max(now.margin, best.robust / 2)
    never_held = now.single >= 0.8 * now.clean
    return parted and (fell or never_held)


def _is_robust_overfitting(now: Reading, best: Reading) -> bool:
    return best.robust - now.robust >= now.margin and now.loss < best.loss
