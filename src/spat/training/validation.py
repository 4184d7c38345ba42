"""By what the best epoch is chosen: accuracy on held-out images under a short attack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from spat.attacks.pgd import PGD
from spat.datasets import Images
from spat.modes import evaluating
from spat.rng import PerExample, derive

BATCH = 500
STEPS = 10


@dataclass(frozen=True)
class Validation:
    clean: float
    robust: float
    attack: str


def validate(
    model: nn.Module, attacked: nn.Module, images: Images, budget: PGD, seed: int
) -> Validation:
    """Clean accuracy, and accuracy under a margin attack, which no scale of the logits weakens.

    attacked: a faster equivalent, say; the verdict is the model's own all the same
    budget: an attack with the eps and norm to defend against; N-FGSM trains beyond its own
    """
    attack = PGD(eps=budget.eps, norm=budget.norm, steps=STEPS, loss="margin")
    correct = held = 0
    for start in range(0, len(images), BATCH):
        part = images[start : start + BATCH]
        x, y = part.floats()
        source = PerExample(derive(seed, "validation"), torch.arange(start, start + len(part)))
        with evaluating(model), torch.no_grad():
            right = model(x).argmax(1) == y
            x_adv = attack(attacked, x, y, rng=source)
            both = right & (model(x_adv).argmax(1) == y)
        correct, held = correct + int(right.sum()), held + int(both.sum())
    name = f"pgd-{STEPS} on the margin at eps {budget.eps:.4g}"
    return Validation(correct / len(images), held / len(images), name)
