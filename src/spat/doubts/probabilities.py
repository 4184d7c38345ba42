"""Probabilities instead of logits: a softmax inside the model blunts every loss on its output."""

from __future__ import annotations

from dataclasses import dataclass

from spat.contracts import look_like_probabilities
from spat.doubts._base import Doubt
from spat.doubts._subject import Subject
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Probabilities(Doubt):
    """The output is a probability distribution."""

    advice = "attack the logits: remove the softmax at the end of the model."

    def __call__(self, subject: Subject) -> Finding:
        if look_like_probabilities(subject.clean):
            return self.finding(
                "red", "the model returns probabilities, not logits: its gradients are blunted."
            )
        return self.finding("green", "the model returns logits.")
