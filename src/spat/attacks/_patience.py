"""When to give a row up: its way to misclassification is too long for the progress it makes.

Progress of these searches slows down like a logarithm: four times the steps, about the same gain.
At 1/8, 1/4 and 1/2 of its steps a row has gained something since a quarter as many; it is given up
if `patience` times that gain, over the quarters of the way that are left, would not be enough.
Given up means robust as far as this search is concerned, so that a break may be missed, but none
is ever invented. On models with useful gradients a patience of 2 missed none that FAB found and
next to none of Square's; where gradients are masked, and Square is what there is, it missed 15 %,
and a patience of 3 missed 1 %.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOOKS = (32, 16, 8, 4, 2)  # a row is looked at after limit / these steps; from the third on, judged
JUDGED = 2


def no_looks(like: Tensor) -> Tensor:
    """[n, looks] what is missing at each look, infinite before it."""
    return torch.full((len(like), len(LOOKS)), torch.inf, dtype=like.dtype, device=like.device)


def until_look(step: Tensor, limit: Tensor) -> Tensor:
    """[n] steps to the next look at each row, or to a limit that lies before it."""
    left = limit[:, None] // torch.tensor((*LOOKS, 1), device=step.device) - step[:, None]
    return torch.where(left > 0, left, limit[:, None]).amin(1)


def look(
    history: Tensor, missing: Tensor, step: Tensor, limit: Tensor, patience: float
) -> tuple[Tensor, Tensor]:
    """The history with this step's look, and the limit of each row: now, if it is given up.

    missing: [n] how far the row is from misclassification, positive until it is there
    """
    parts = torch.tensor(LOOKS, device=step.device)
    now = step[:, None] == limit[:, None] // parts
    if not bool(now.any()):
        return history, limit
    history = torch.where(now, missing[:, None], history)
    gain = history[:, :-JUDGED] - history[:, JUDGED:]
    quarters = parts[JUDGED:].to(missing).log() / math.log(4)
    hopeless = now[:, JUDGED:] & (missing[:, None] > patience * gain * quarters)
    return history, torch.where(hopeless.any(1), step, limit)
