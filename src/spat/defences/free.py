"""Free adversarial training (Shafahi et al., NeurIPS 2019): one backward pass serves two updates.

    each batch is used `replays` times in a row; each time
        g_w, g_x = gradients of CE( f(x + delta), y )          one pass
        w     <- optimiser step along g_w
        delta <- clip( delta + eps sign(g_x), -eps, eps )

delta starts at zero and is carried from one batch to the next, so it is part of a run's state. The
authors clip x + delta to [0, 1] inside the graph, which stops delta where a pixel is saturated;
here it is clipped outside. A pass over the data is `replays` times as many updates: for a budget of
E ordinary epochs, train E / replays epochs. The authors replay 8 times on CIFAR-10.
Known weakness: the perturbation is tuned to no image in particular when a new batch begins, and the
result is below that of PGD training of the same length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.attacks.pgd import PGD
from spat.defences._base import Crafted, Defence, Progress, Terms, in_range
from spat.losses import ce


@dataclass(frozen=True, kw_only=True)
class Free(Defence):
    """Free adversarial training: images and weights are updated by the same backward pass.

    replays: times each batch is used in a row
    attack: its eps and norm are used, and its step size, by default eps
    """

    replays: int = 8
    attack: PGD = PGD(steps=1, start="zero")

    def __post_init__(self) -> None:
        in_range("free", 1, float("inf"), replays=self.replays)

    def craft(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        noise: Tensor | None = None,
    ) -> Crafted:
        """x + delta; `noise` is the delta that is carried."""
        delta = torch.zeros_like(x) if noise is None else noise
        return Crafted(self.attack.threat.project(x + delta, x).detach())

    def respond(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        crafted: Crafted,
        progress: Progress | None = None,
    ) -> Terms:
        assert crafted.x_adv is not None
        crafted.x_adv.requires_grad_()  # a leaf: the backward pass leaves its gradient here
        return super().respond(model, x, y, crafted, progress)

    def carry(self, crafted: Crafted, x: Tensor) -> Tensor | None:
        """delta for the next time, from the gradient that the training pass left."""
        x_adv = crafted.x_adv
        assert x_adv is not None
        assert x_adv.grad is not None
        size = self.attack.eps if self.attack.step_size is None else self.attack.step_size
        threat, gradient = self.attack.threat, x_adv.grad
        return threat.project(x_adv.detach() + size * threat.steepest(gradient), x) - x

    def terms(self, clean: Any, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
        loss = ce(adv, labels)
        return Terms(loss, {"ce": loss})
