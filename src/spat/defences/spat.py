"""SPAT, self-paced adversarial training (Hou, Han & Li, AAAI 2023).

c_j, c'_j: cosine of the features of x, of x', to the prototype of class j.   s: scale.
    g_y = 1 - c_y + beta,   g_j = c_j + beta  (j != y)                         self-paced gains
    L_acc = -log( exp(s g_y c_y) / sum_j exp(s g_j c_j) )
    p = softmax(s c),   q = softmax(s c'),   t_j = p_j log(p_j / q_j)          no gains here
    L_rob = alpha sum_j t_j + sum_j t_j^2
    loss  = L_acc + weight L_rob
The inner attack maximises L_rob from 0.001 x normal noise. Gradients flow through the gains unless
they are detached: the equation has no stop-gradient and neither has the authors' code, though
above c_y = (1 + beta) / 2 the loss then pushes the true cosine down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Defence, Passes, Terms, in_range, positive
from spat.losses import AttackLoss, ce, log_ratio

PRESETS = {
    "paper": {},
    "paper-wrn": {"scale": 9.0},
    "official": {"scale": 8.0, "attack.eps": 0.031, "attack.step_size": 0.007, "head_bias": True},
}


@dataclass(frozen=True, kw_only=True)
class SPAT(Defence):
    """Self-paced hard-class pair reweighting, on a cosine head.

    scale: s, what cosines are multiplied by to become logits
    alpha: weight of KL inside the robustness term
    beta: smoothing of the gains, so that neither vanishes
    weight: lambda, weight of the robustness term
    detach_gains: treat the gains as constants: same value, other gradient
    head_bias: whether the cosine head it asks for has a bias, as the authors' code has
    """

    scale: float = 5.0
    alpha: float = 0.2
    beta: float = 0.2
    weight: float = 6.0
    detach_gains: bool = False
    head_bias: bool = False
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="normal")

    passes: ClassVar[Passes] = "both"
    head = "cosine"

    def __post_init__(self) -> None:
        positive("spat", scale=self.scale, weight=self.weight)
        in_range("spat", 0.0, float("inf"), alpha=self.alpha, beta=self.beta)

    def gains(self, c: Tensor, y: Tensor) -> Tensor:
        """g [n, C]: large for the true class while it is far, for a false one while it is near."""
        true = F.one_hot(y, c.shape[1]).bool()
        g = (1 - c).where(true, c) + self.beta
        return g.detach() if self.detach_gains else g

    def accuracy(self, c: Tensor, y: Tensor) -> Tensor:
        return ce(self.scale * self.gains(c, y) * c, y)

    def robustness(self, c: Tensor, c_adv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L_rob and its two parts, KL and the squared per-class log-ratio term."""
        t = log_ratio(self.scale * c, self.scale * c_adv)
        kl, inconsistency = t.sum(1), t.square().sum(1)
        return self.alpha * kl + inconsistency, kl, inconsistency

    def inner_loss(self) -> AttackLoss:
        return lambda c_adv, y, c: self.robustness(c, c_adv)[0]  # type: ignore[arg-type]

    def terms(self, clean: Tensor, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
        accuracy = self.accuracy(clean, labels)
        robustness, kl, inconsistency = self.robustness(clean, adv)
        return Terms(
            accuracy + self.weight * robustness,
            {
                "accuracy": accuracy,
                "robustness": robustness,
                "kl": kl,
                "inconsistency": inconsistency,
            },
        )
