"""Which images are attacked first, and when they are enough.

The images are put in a random order that the seed alone decides, before anything is known of them.
They are attacked in waves of that order, and only whole waves count: so the images counted are the
first m of a random order, a simple random sample of all, whatever m is.

m may depend on what was found. A stop by width looks at how many images hold, not at which: p is
what decides the width, and the interval that is just narrow enough still covers p in about 95% of
cases (tests/unit/test_sampling.py simulates it). A stop by time decides before a wave, from the
waves behind it, whether there is time for it; one that is cut off all the same is not counted.
Images that hold take longer, so a wave that is cut off holds more than others: what leaving it out
shifts is of the order of half the interval's width divided by the root of m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spat import rng
from spat.limits import Limits
from spat.statistics import wilson

FIRST = 16  # images of the first wave; waves double what there is, up to a limit
BATCHES = 2  # that limit: larger waves keep batches full, smaller ones stop sooner


def sampled(n: int, seed: int, batch: int) -> list[Tensor]:
    """int64 [m] each: n places in a random order, cut into waves, each in ascending order."""
    order = torch.randperm(n, generator=rng.generator(seed, "sample"))
    found, start = [], 0
    while start < n:
        stop = min(n, start + min(max(start, FIRST), max(BATCHES * batch, FIRST)))
        found.append(order[start:stop].sort().values)
        start = stop
    return found


def half_width(k: int, n: int) -> float:
    """Of the 95% interval of the share of which `k` of `n` were seen."""
    low, high = wilson(k, n)
    return (high - low) / 2


def time_left(k: int, n: int, of: int, spent: float, stop: Limits) -> float:
    """Seconds until it stops by the sooner limit, if images go on holding and taking as they did.

    The width goes with one over the root of the number of images.
    """
    needed = min(of, n * (half_width(k, n) / stop.within) ** 2) if stop.within else of
    return max(0.0, min(spent / n * (needed - n), stop.seconds - spent))
