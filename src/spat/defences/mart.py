"""MART (Wang, Zou, Yi, Bailey, Ma & Gu, ICLR 2020).

    boosted = -log q_y - log(1 - max_{k != y} q_k)
    loss = boosted + weight KL(p || q) (1 - p_y)
    x' = argmax CE(f(x'), y) within eps of x, from 0.001 x normal noise

z, z': logits of x and x'.   p = softmax(z),   q = softmax(z').   weight: lambda.
Nothing is detached, neither p nor 1 - p_y. The official variant has the constants of the authors'
code: log(1.0001 - q_k), log(q + 1e-12) inside KL and 1.0000001 - p_y. They change the value by less
than 1e-4 relative, but KL then stops pulling where q_j falls far below 1e-12. The paper starts the
inner attack uniformly, the code from small normal noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Terms, need_rival, one_of, positive
from spat.defences._self_paced import NO_COSINES, Cosines, SelfPaced
from spat.losses import boosted_ce, log_rest

PRESETS = {
    "official": {"attack.eps": 0.031, "attack.step_size": 0.007},
    "paper": {"variant": "paper", "attack.start": "uniform"},
}
Variant = Literal["official", "paper"]
SLACK = 1e-4 + 1e-12  # of 1.0001 - q_k + 1e-12
FLOOR = 1e-12  # of log(q + 1e-12)
LEAK = 1e-7  # of 1.0000001 - p_y


@dataclass(frozen=True, kw_only=True)
class MART(SelfPaced):
    """MART: boosted cross entropy, and KL weighted by how unsure the clean prediction is.

    weight: lambda, of the KL term
    variant: official (with the constants of the authors' code) or paper (without)
    """

    weight: float = 5.0
    variant: Variant = "official"
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="normal")

    passes = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("mart", weight=self.weight)
        one_of("mart", get_args(Variant), variant=self.variant)

    def terms(
        self,
        clean: Tensor,
        adv: Tensor,
        labels: Tensor,
        *,
        cosines: Cosines = NO_COSINES,
        **context: Any,
    ) -> Terms:
        need_rival("mart", adv)
        parts = mart_parts(self, clean, adv, labels, cosines, self.variant)
        return Terms(parts["accuracy"] + self.weight * parts["robustness"], parts)


def mart_parts(
    defence: SelfPaced,
    clean: Tensor,
    adv: Tensor,
    labels: Tensor,
    cosines: Cosines,
    variant: Variant = "official",
) -> dict[str, Tensor]:
    """MART's terms; where they are self-paced, the gains act on the adversarial logits."""
    slack, floor, leak = (SLACK, FLOOR, LEAK) if variant == "official" else (0.0, 0.0, 0.0)
    boosted = boosted_ce(defence.gained(adv, labels, cosines[-1]), labels, slack)
    kl = defence.divergence(defence.log_ratios(clean, adv, floor))
    unsure = log_rest(defence.z(clean), labels).exp() + leak
    return {"accuracy": boosted, "robustness": kl * unsure, "kl": kl, "unsure": unsure}
