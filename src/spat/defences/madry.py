"""PGD adversarial training (Madry, Makelov, Schmidt, Tsipras & Vladu, ICLR 2018).

    x' = argmax CE(f(x'), y) within eps of x,    loss = CE(z', y)

z' = f(x'): logits of the adversarial image. The clean image is not trained on.
The inner attack starts uniformly in the ball; 10 steps of 2/255 follow the authors' configuration
file for CIFAR. Their code runs it with BatchNorm in training mode, others in evaluation mode, as
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spat.attacks.pgd import PGD
from spat.defences._base import Defence, Terms
from spat.losses import ce

PRESETS = {"mnist": {"attack.eps": 0.3, "attack.steps": 40, "attack.step_size": 0.01}}


@dataclass(frozen=True, kw_only=True)
class Madry(Defence):
    """PGD adversarial training: cross entropy on adversarial images only."""

    attack: PGD = PGD(steps=10, step_size=2 / 255, start="uniform")

    def terms(self, clean: Any, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
        loss = ce(adv, labels)
        return Terms(loss, {"ce": loss})
