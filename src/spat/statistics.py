"""How sure a number is: Wilson's interval, McNemar's exact test, Student's interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import numpy as np
from numpy.typing import ArrayLike

from spat.errors import UserError


def wilson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share of which `k` of `n` were seen.

        (p + z^2/2n  -+  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n),   p = k/n

    It stays inside [0, 1] and keeps its coverage near both ends, where robust accuracies live.
    """
    _check_share(k, n)
    _check_confidence(confidence)
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p, slack = k / n, z * z / n
    centre = (p + slack / 2) / (1 + slack)
    half = math.sqrt(p * (1 - p) * slack + slack * slack / 4) / (1 + slack)
    # At both ends the formula gives exactly 0 and 1, which rounding would miss.
    return (centre - half if k else 0.0), (centre + half if k < n else 1.0)


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """The p-value that two models, judged on the same examples, are equally often right.

    Exact and two-sided: of the m examples on which they differ, the number won by one is
    Binomial(m, 1/2). Whole numbers throughout, so nothing is rounded before the last division.
    """
    first, second = np.asarray(a, np.bool_), np.asarray(b, np.bool_)
    if first.shape != second.shape:
        raise UserError(
            "a paired test needs the same examples on both sides, "
            f"got {first.shape} and {second.shape}."
        )
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    return _two_sided(min(only_a, only_b), only_a + only_b)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds; one seed alone says nothing about the spread, so it has none."""

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    n: int


def over_seeds(values: Sequence[float], confidence: float = 0.95) -> Spread:
    """Mean, standard deviation and Student's interval of one number measured with several seeds."""
    n = len(values)
    if n == 0:
        raise UserError("a mean over seeds needs at least one value, got none.")
    _check_confidence(confidence)
    mean = fmean(values)
    if n == 1:
        return Spread(mean, None, None, None, n)
    deviation = stdev(values)
    half = student(confidence, n - 1) * deviation / math.sqrt(n)
    return Spread(mean, deviation, mean - half, mean + half, n)


def student(confidence: float, df: int) -> float:
    """The t with P(|T| < t) = confidence, by bisection on its angle atan(t / sqrt(df))."""
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _inside(middle, df) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(df) * math.tan(low)


def _inside(theta: float, df: int) -> float:
    """P(|T| < sqrt(df) tan(theta)) for whole df: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd, cosine = df % 2, math.cos(theta)
    term, total = cosine if odd else 1.0, 0.0
    for power in range(odd, df - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cosine * cosine
    total *= math.sin(theta)
    return 2 / math.pi * (theta + total) if odd else total


def _two_sided(few: int, m: int) -> float:
    """min(1, 2 P(X <= few)) for X ~ Binomial(m, 1/2)."""
    choose, total = 1, 0
    for i in range(few + 1):
        total += choose
        choose = choose * (m - i) // (i + 1)
    return min(1.0, 2 * total / (1 << m))


def _check_share(k: int, n: int) -> None:
    if not 0 <= k <= n:
        raise UserError(f"a share needs 0 <= k <= n, got k = {k} of n = {n}.")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"confidence must lie between 0 and 1, got {confidence:g}.")
