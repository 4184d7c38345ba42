"""GAIRAT, geometry-aware instance reweighting (Zhang, Zhu, Niu, Han, Sugiyama & Kankanhalli, 2021).

    kappa  = number of the K inner steps at whose start x' is still classified correctly
    u      = shift + 5 (1 - 2 kappa / K)
    omega  = (1 + tanh u) / 2 = sigmoid(2 u)
    loss_i = w_i CE(z'_i, y_i),    w_i = n omega_i / sum_j omega_j

z': logits of x'.   n: batch size.   shift: the paper's lambda.   Weights carry no gradient.
Examples near the decision boundary (small kappa) weigh more. kappa counts the random start but not
the final x', and does not stop at the first success. Epochs before `begin_epoch` are plain CE.
The official variant has K // 2 in place of K / 2: the same for even K. In place of tanh's omega,
`sigmoid` has sigmoid(u), `discrete` (K + 1 - kappa) / (K + 1). shift = inf is Madry's loss.

Known weakness: it looks robust to CE-PGD and falls to other attacks (about 36% under AutoAttack in
the table of the SPAT paper): the weights flatten the loss where that attack looks. Judge it by
margin attacks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.attacks.pgd import PGD
from spat.defences._base import Crafted, Defence, Progress, Terms, in_proportion, in_range, one_of
from spat.errors import UserError
from spat.losses import ce
from spat.world import ALONE, World

PRESETS = {"official": {"attack.eps": 0.031, "attack.step_size": 0.007}}
Weighting = Literal["tanh", "sigmoid", "discrete"]
Variant = Literal["official", "paper"]


@dataclass(frozen=True, kw_only=True)
class GAIRAT(Defence):
    """Madry's loss with more weight on examples that the inner attack breaks early.

    shift: lambda: the larger, the more even the weights
    steps: K, steps of the inner attack; by default as many as attack.steps says
    function: of kappa that gives the weight: tanh, sigmoid or discrete
    variant: official (K // 2, as in the authors' code) or paper (K / 2)
    begin_epoch: first epoch (counted from 1) with weights
    """

    shift: float = -1.0
    steps: int | None = None
    function: Weighting = "tanh"
    variant: Variant = "official"
    begin_epoch: int = 60
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="uniform")

    def __post_init__(self) -> None:
        one_of("gairat", get_args(Weighting), function=self.function)
        one_of("gairat", get_args(Variant), variant=self.variant)
        in_range("gairat", -100, float("inf"), shift=self.shift)
        in_range("gairat", 1, float("inf"), begin_epoch=self.begin_epoch)
        if self.inner.steps < 2:
            raise UserError(
                "gairat weighs examples by the inner step at which they break and needs "
                f"at least 2 steps, got {self.inner.steps}."
            )

    @property
    def inner(self) -> PGD:
        return self.attack if self.steps is None else replace(self.attack, steps=self.steps)

    @property
    def warmup_epochs(self) -> int:
        return self.begin_epoch - 1

    def log_omega(self, kappa: Tensor) -> Tensor:
        """log omega [n], which stays exact where tanh has rounded to -1."""
        K = self.inner.steps
        if self.function == "discrete":
            return torch.log((K + 1 - kappa) / (K + 1))
        half = K // 2 if self.variant == "official" else K / 2
        u = self.shift + 5 * (half - kappa) / half
        return F.logsigmoid(2 * u if self.function == "tanh" else u)

    @torch.no_grad()
    def weights(self, kappa: Tensor, world: World = ALONE) -> Tensor:
        """w [n], whose mean over the batch, other processes' part included, is 1."""
        exact = kappa if kappa.is_floating_point() else kappa.double()
        return in_proportion(self.log_omega(exact), world)

    def craft(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        noise: Tensor | None = None,
    ) -> Crafted:
        kappa = torch.zeros_like(y, dtype=torch.int64)

        def watch(rows: slice, logits: Tensor) -> None:
            kappa[rows] += logits.argmax(1) == y[rows]

        x_adv = self.inner.craft(model, x, y, rng=rng, noise=noise, watch=watch)
        return Crafted(x_adv, {"kappa": kappa})

    def terms(
        self,
        clean: Any,
        adv: Tensor,
        labels: Tensor,
        *,
        kappa: Tensor | None = None,
        progress: Progress | None = None,
        world: World = ALONE,
        **context: Any,
    ) -> Terms:
        loss = ce(adv, labels)
        if self.warming_up(progress):
            return Terms(loss, {"ce": loss})
        if kappa is None:
            raise UserError("gairat needs kappa=, the counts that its inner attack returns.")
        kappa = kappa.to(loss.dtype)
        weight = self.weights(kappa, world)
        return Terms(weight * loss, {"ce": loss, "weight": weight, "kappa": kappa})
