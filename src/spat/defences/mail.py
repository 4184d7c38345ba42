"""MAIL, margin-based instance reweighting (Wang, Liu, Han, Liu, Gong, Niu, Zhou & Sugiyama, 2021).

    PM  = q_y - max_{k != y} q_k                       probabilistic margin, q = softmax(z')
    w   = 3 sigmoid(slope (bias - PM))                 "x3", the authors' code
    w_i = n omega_i / sum_j omega_j,  omega = sigmoid(slope (bias - PM))           "batch"
    at:      w CE(z', y)
    trades:  CE(z, y) + weight w KL(p || q)
    mart:    w boosted(z', y) + weight KL(p || q) (1 - p_y)        (MART's terms, official variant)

z, z': logits of x and x'.   n: batch size.   Weights carry no gradient; they come from the training
pass. The paper normalises them over the batch, the code multiplies by 3: with bias -0.5 only
clearly misclassified examples then weigh anything, and the loss of "at" is tens of times smaller.
Epochs up to `burn_in` train the base itself. x' maximises CE (at, mart) or KL (trades).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import (
    Passes,
    Progress,
    Terms,
    in_proportion,
    in_range,
    need_rival,
    one_of,
    positive,
)
from spat.defences._self_paced import NO_COSINES, Cosines, SelfPaced
from spat.defences.mart import mart_parts
from spat.errors import UserError
from spat.losses import AttackLoss, margin
from spat.world import ALONE, World

PRESETS = {
    "at": {"base": "at", "slope": 10.0, "bias": -0.5},
    "trades": {"base": "trades", "slope": 2.0, "bias": 0.0},
    "mart": {"base": "mart", "slope": 10.0, "bias": -0.5},
}
Base = Literal["at", "trades", "mart"]
Normalise = Literal["x3", "batch"]


@dataclass(frozen=True, kw_only=True)
class MAIL(SelfPaced):
    """Adversarial training, TRADES or MART with more weight on examples of small margin.

    base: the loss that is reweighted: at (Madry), trades or mart
    slope: how sharply the weight falls with the margin
    bias: margin at which it has fallen to half
    weight: of the robustness term of trades and mart
    normalise: x3 (three times a sigmoid, as in the code) or batch (weights of mean 1)
    burn_in: epochs trained on the base without weights first
    """

    base: Base = "at"
    slope: float = 10.0
    bias: float = -0.5
    weight: float = 5.0
    normalise: Normalise = "x3"
    burn_in: int = 76
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="normal")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("mail", get_args(Base), base=self.base)
        one_of("mail", get_args(Normalise), normalise=self.normalise)
        positive("mail", weight=self.weight)
        in_range("mail", 0.0, float("inf"), slope=self.slope, burn_in=self.burn_in)
        if self.base == "at" and self.sp in ("robustness", "both"):
            raise UserError(
                "mail with base='at' has no robustness term: sp must be none or accuracy, "
                f"got {self.sp!r}."
            )

    @property
    def passes(self) -> Passes:
        return "adversarial" if self.base == "at" else "both"

    @property
    def warmup_epochs(self) -> int:
        return self.burn_in

    def inner_loss(self) -> AttackLoss:
        return self.inner_divergence() if self.base == "trades" else super().inner_loss()

    @torch.no_grad()
    def weights(self, adv: Tensor, labels: Tensor, world: World = ALONE) -> Tensor:
        """w [n]: large where the adversarial margin is small."""
        u = self.slope * (self.bias - margin(self.z(adv).softmax(1), labels))
        if self.normalise == "x3":
            return 3 * u.sigmoid()
        return in_proportion(F.logsigmoid(u), world)

    def terms(
        self,
        clean: Any,
        adv: Tensor,
        labels: Tensor,
        *,
        cosines: Cosines = NO_COSINES,
        progress: Progress | None = None,
        world: World = ALONE,
        **context: Any,
    ) -> Terms:
        need_rival("mail", adv)
        parts = self._parts(clean, adv, labels, cosines)
        plain = self.warming_up(progress)
        w = torch.ones_like(parts["accuracy"]) if plain else self.weights(adv, labels, world)
        on_accuracy, on_robustness = (1, w) if self.base == "trades" else (w, 1)
        robustness = parts.get("robustness", 0)
        loss = on_accuracy * parts["accuracy"] + self.weight * on_robustness * robustness
        return Terms(loss, {**parts, "weight": w})

    def _parts(self, clean: Any, adv: Tensor, y: Tensor, cosines: Cosines) -> dict[str, Tensor]:
        """The unweighted terms of the base."""
        if self.base == "mart":
            return mart_parts(self, clean, adv, y, cosines)
        if self.base == "at":
            return {"accuracy": self.accuracy(adv, y, cosines[-1])}
        robustness = self.divergence(self.log_ratios(clean, adv))
        return {"accuracy": self.accuracy(clean, y, cosines[0]), "robustness": robustness}
