"""What plain float32 forwards say of images, beside what a card says of them.

Another machine rounds its sums in another order. A prediction that differs by less than that is
counted as a tie and said, not called false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spat.contracts import check_labels
from spat.modes import borrowed, full_float32
from spat.records import Bools, Ints

Floats = NDArray[np.float64]
TIE = 1e-4  # of an example's largest logit; float32 sums over a deep network differ by up to 1e-5
BATCH = 128


@dataclass(frozen=True)
class Forwarded:
    """[n] what plain forwards say of some images, beside what a card says of them.

    right: classified as the label
    gap: how far the logit of the claimed class is below the largest, relative to the largest
    lead: how far the logit of the label is above all others
    """

    right: Bools
    gap: Floats
    lead: Floats


def forward(
    model: nn.Module, part: Callable[[int, int], Tensor], y: Tensor, claimed: Ints
) -> Forwarded:
    """Plain float32 forwards, a batch at a time."""
    found = []
    with borrowed(model, y.device), torch.no_grad(), full_float32():
        for start in range(0, len(y), BATCH):
            rows = slice(start, start + BATCH)
            z: Tensor = model(part(start, start + BATCH).to(y.device))
            found.append(
                _compared(z.double().cpu(), y[rows].cpu(), torch.from_numpy(claimed[rows]))
            )
    right, gap, lead = (torch.cat(column).numpy() for column in zip(*found, strict=True))
    return Forwarded(right, gap, lead)


def _compared(z: Tensor, y: Tensor, claimed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits against labels and claims; NaN, and a class that there is not, support no claim."""
    check_labels(y, len(z), z.shape[1])
    z, size = z.nan_to_num(torch.inf), z.abs().amax(1).clamp(min=1e-30)
    there = claimed < z.shape[1]
    said = z.gather(1, torch.where(there, claimed, 0)[:, None]).squeeze(1)
    own = z.gather(1, y[:, None]).squeeze(1)
    other = z.scatter(1, y[:, None], -torch.inf).amax(1)
    gap = torch.where(there, (z.amax(1) - said) / size, torch.inf)
    return z.argmax(1) == y, gap.nan_to_num(torch.inf), ((own - other) / size).nan_to_num(torch.inf)
