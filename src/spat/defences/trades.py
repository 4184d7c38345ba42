"""TRADES (Zhang, Yu, Jiao, Xing, El Ghaoui & Jordan, ICML 2019).

    loss = CE(z, y) + weight KL(p || q)
    x' = argmax KL(p || q) within eps of x, from 0.001 x normal noise (attack.loss is not read)

z, z': logits of x and x'.   p = softmax(z),   q = softmax(z').   weight: the paper's 1/lambda, the
code's beta: 6 for CIFAR, 1 for MNIST. KL is summed over the classes, averaged over the batch.
Gradients reach p as well as q, in the paper's equation and in the authors' code; `detach_target`
stops them at p, a common slip kept for comparison. The authors' code makes a third training pass
(clean once more), which only updates BatchNorm and draws dropout a third time; here there are two.
SPAT without self-pacing and without cosines is this loss exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Terms, positive
from spat.defences._self_paced import NO_COSINES, Cosines, SelfPaced
from spat.losses import AttackLoss

PRESETS = {
    "official": {"attack.eps": 0.031, "attack.step_size": 0.007},
    "mnist": {
        "weight": 1.0,
        "attack.eps": 0.3,
        "attack.steps": 40,
        "attack.step_size": 0.01,
    },
}


@dataclass(frozen=True, kw_only=True)
class TRADES(SelfPaced):
    """TRADES: clean cross entropy plus KL between clean and adversarial predictions.

    weight: of KL against cross entropy: beta of the authors' code
    detach_target: no gradient through the clean side of KL
    """

    weight: float = 6.0
    detach_target: bool = False
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="normal")

    passes = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("trades", weight=self.weight)

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
        target = clean.detach() if self.detach_target else clean
        robustness = self.divergence(self.log_ratios(target, adv))
        return Terms(
            accuracy + self.weight * robustness, {"accuracy": accuracy, "robustness": robustness}
        )
