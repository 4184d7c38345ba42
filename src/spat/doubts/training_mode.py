"""A model handed over in training mode: dropout draws, BatchNorm looks at the batch.

Here it is audited in eval mode; another tool may not be so careful, and its numbers are then wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spat.doubts._base import Doubt
from spat.doubts._subject import Subject
from spat.findings import Finding
from spat.modes import restored_modes


@dataclass(frozen=True, kw_only=True)
class TrainingMode(Doubt):
    """The model came in training mode and answers differently in it.

    tolerance: difference of the logits, as a share of the largest, that rounding explains
    """

    tolerance: float = 1e-4
    advice = "call model.eval() first; numbers taken in training mode are not those of the model."

    def __call__(self, subject: Subject) -> Finding:
        if not subject.training:
            return self.finding("green", "the model was in eval mode.")
        change = _change(subject)
        if change > self.tolerance:
            return self.finding(
                "amber",
                "the model was left in training mode, where its logits differ from those in eval "
                "mode; here it is audited in eval mode.",
                change=change,
            )
        reason = "the model was left in training mode, which does not change its logits."
        return self.finding("green", reason, change=change)


@torch.no_grad()
def _change(subject: Subject) -> float:
    """Largest relative difference of a batch's logits in the two modes, over that by chance.

    Buffers are put back.
    """
    (x, *_), buffers = subject.batches(subject.x), list(subject.model.buffers())
    kept, calm = [buffer.clone() for buffer in buffers], subject.logits(x)
    try:
        with restored_modes(subject.model):
            for part in subject.training:
                part.training = True
            z = subject.logits(x)
    finally:
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)
    chance = (subject.logits(x) - calm).abs().max()  # a random model differs from itself
    change = (z - calm).abs().max()
    return float((change - 2 * chance).clamp(min=0) / calm.abs().max().clamp(min=1e-12))
