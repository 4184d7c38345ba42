"""Adversarial logit pairing (Kannan, Kurakin & Goodfellow 2018).

    loss = a CE(z, y) + (1 - a) CE(z', y) + weight * pairing
    pairing = 1/C sum_j (z_j - z'_j)^2    ("sum": without the 1/C, so C times larger)

z, z': logits of x and x'.   a: `clean_ce_weight`, 1/2 for the mixed batch.   C: classes.
Defaults give the reference code's value without its label smoothing (0.1). Papers also tabulate the
form with a = 0 and the sum over classes; the same weight then means C times more pairing.
x' maximises CE from 0.001 x normal noise; the reference code attacks towards a random or the least
likely class.

Known weakness: pairing can mask gradients. Logits that agree along the inner attack's path need not
agree elsewhere: judge it by attacks with many restarts, targeted ones and ones without gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Defence, Terms, in_range, one_of, positive

PRESETS = {"official": {"attack.eps": 0.031, "attack.step_size": 0.007}}
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, kw_only=True)
class ALP(Defence):
    """Adversarial logit pairing: clean and adversarial logits are drawn together; masks gradients.

    weight: of the pairing term
    pairing_reduction: over the classes: mean, or sum (C times larger)
    clean_ce_weight: share of cross entropy that falls on the clean image
    label_smoothing: share of the target spread evenly over all classes
    """

    weight: float = 0.5
    pairing_reduction: Reduction = "mean"
    clean_ce_weight: float = 0.5
    label_smoothing: float = 0.0
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="normal")

    passes = "both"

    def __post_init__(self) -> None:
        positive("alp", weight=self.weight)
        one_of("alp", get_args(Reduction), pairing_reduction=self.pairing_reduction)
        in_range("alp", 0.0, 1.0, clean_ce_weight=self.clean_ce_weight)
        in_range("alp", 0.0, 1.0, label_smoothing=self.label_smoothing)

    def terms(self, clean: Tensor, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
        share = self.clean_ce_weight
        accuracy = share * self._ce(clean, labels) + (1 - share) * self._ce(adv, labels)
        squares = (clean - adv).square()
        pairing = squares.mean(1) if self.pairing_reduction == "mean" else squares.sum(1)
        return Terms(accuracy + self.weight * pairing, {"accuracy": accuracy, "pairing": pairing})

    def _ce(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y, reduction="none", label_smoothing=self.label_smoothing)
