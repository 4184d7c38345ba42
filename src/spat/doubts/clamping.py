"""A clamp inside the graph: pixels at 0 or 1 get no gradient, those next to them do.

In the range of an image most attacks end at its edges, so an attack through such a clamp loses its
gradient as it goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spat import losses
from spat import rng as random
from spat.doubts._base import Doubt
from spat.doubts._subject import Subject
from spat.findings import Finding, Level

INSIDE = 2e-3  # of the pixel range: how far pixels at its edges are moved inwards, at most


@dataclass(frozen=True, kw_only=True)
class Clamping(Doubt):
    """Pixels at the edges of [0, 1] lose their gradient, which they have just inside.

    amber: share of those pixels that must be exceeded for amber
    red: the same for red
    """

    amber: float = 0.1
    red: float = 0.5
    advice = (
        "project outside of the autograd graph, and let no clamp of the model cut its gradient."
    )

    def __call__(self, subject: Subject) -> Finding:
        at_edge = (subject.x == 0) | (subject.x == 1)
        count = int(at_edge.sum())
        if not count:
            return self.finding("green", "no pixel of the images is at 0 or 1.", clamped_pixels=0.0)
        dead = _dead(subject, subject.x) & at_edge
        moved = _dead(subject, _inside(subject)) & at_edge
        lost = max(int(dead.sum()) - int(moved.sum()), 0) / count
        level: Level = "red" if lost > self.red else "amber" if lost > self.amber else "green"
        return self.finding(
            level,
            f"{100 * lost:.0f}% of the pixels at 0 or 1 have no gradient there but have one just "
            "inside.",
            clamped_pixels=lost,
            pixels_at_edge=count / subject.x.numel(),
        )


def _dead(subject: Subject, x: Tensor) -> Tensor:
    return subject.gradient(x, losses.attack_loss("margin")) == 0


def _inside(subject: Subject) -> Tensor:
    """The images with their extreme pixels a little inside, each by another distance."""
    shift = INSIDE * (0.5 + 0.5 * random.uniform(subject.random("inside"), subject.x))
    return torch.minimum(torch.maximum(subject.x, shift), 1 - shift)
