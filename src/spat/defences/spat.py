"""SPAT, self-paced adversarial training (Hou, Han & Li, AAAI 2023).

c_j, c'_j: cosine of the features of x, of x', to the prototype of class j.   s: scale.
    g_y = 1 - c_y + beta,   g_j = c_j + beta  (j != y)                         self-paced gains
    L_acc = -log( exp(s g_y c_y) / sum_j exp(s g_j c_j) )
    p = softmax(s c),   q = softmax(s c'),   t_j = p_j log(p_j / q_j)          no gains here
    L_rob = alpha sum_j t_j + sum_j t_j^2
    loss  = L_acc + weight L_rob
The inner attack maximises L_rob, whatever attack.loss says, from 0.001 x normal noise.
Gradients flow through the gains unless they are detached: the equation has no stop-gradient and
neither has the authors' code, though above c_y = (1 + beta) / 2 the loss then pushes the true
cosine down, and the accuracy term has a floor above zero.

Rows of the paper's ablation: sp = accuracy, robustness or none removes self-pacing from the other
term (gain 1, plain KL of weight 1); logits = raw on a linear head replaces the normalised
cross-entropy by CE with gains from the cosines ("SP-CE"), or without (CE). With sp = none and
logits = raw what is left is TRADES. The official preset is the authors' code: scale 8, eps 0.031,
steps of 0.007 and a biased head, where the bias joins the cosine in the gains and is scaled too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Terms, positive
from spat.defences._self_paced import NO_COSINES, Cosines, Logits, Parts, SelfPaced
from spat.losses import AttackLoss

PRESETS = {
    "paper": {},
    "paper-wrn": {"scale": 9.0},
    "official": {"scale": 8.0, "attack.eps": 0.031, "attack.step_size": 0.007, "head_bias": True},
    "detached": {"detach_gains": True},
}


@dataclass(frozen=True, kw_only=True)
class SPAT(SelfPaced):
    """Self-paced hard-class pair reweighting, on a cosine head.

    weight: lambda, weight of the robustness term
    head_bias: whether the cosine head it asks for has a bias, as the authors' code has
    """

    sp: Parts = "both"
    logits: Logits = "cosine"
    weight: float = 6.0
    head_bias: bool = False
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="normal")

    passes = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("spat", weight=self.weight)

    def inner_loss(self) -> AttackLoss:
        return self.inner_divergence()

    def terms(
        self,
        clean: Tensor,
        adv: Tensor,
        labels: Tensor,
        *,
        cosines: Cosines = NO_COSINES,
        **context: Any,
    ) -> Terms:
        accuracy = self.accuracy(clean, labels, cosines[0])
        t = self.log_ratios(clean, adv)
        robustness = self.divergence(t)
        return Terms(
            accuracy + self.weight * robustness,
            {
                "accuracy": accuracy,
                "robustness": robustness,
                "kl": t.sum(1),
                "inconsistency": t.square().sum(1),
            },
        )
