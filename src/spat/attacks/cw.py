"""Carlini-Wagner in the l-infinity ball: PGD on the margin of each example.

The rival logit is masked with -inf, per example. Codes that multiply by a mask read 0 where all
other logits are negative, and codes that take the mean of the batch let one example stop another.
"""

from __future__ import annotations

from spat.attacks.pgd import PGD
from spat.threat import Budget, Norm


def cw(
    *,
    eps: Budget = 8 / 255,
    norm: Norm = "linf",
    steps: int = 30,
    step_size: float | None = None,
    restarts: int = 1,
) -> PGD:
    """PGD on the per-example margin: a difference of logits, whatever their scale.

    eps: budget: 0 to 1 for linf, such as 8/255; a Euclidean length for l2
    norm: linf or l2
    steps: gradient steps
    step_size: length of a step; by default 2 eps / steps
    restarts: repeats from new starts; the worst result of each example is kept
    """
    return PGD(
        eps=eps, norm=norm, steps=steps, step_size=step_size, restarts=restarts, loss="margin"
    )
