"""By what the best epoch is chosen: accuracy on held-out images under a short attack."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Shares of `n` images; `single` hold against one step of the size of eps."""

    clean: float
    single: float
    robust: float
    attack: str
    n: int


def validate(
    model: nn.Module, attacked: nn.Module, images: Images, budget: PGD, seed: int
) -> Validation:
    """Clean accuracy, and accuracy under a margin attack, which no scale of the logits weakens.

    attacked: a faster equivalent, say; the verdict is the model's own all the same
    budget: an attack with the eps and norm to defend against; N-FGSM trains beyond its own
    """
    attack = PGD(eps=budget.eps, norm=budget.norm, steps=STEPS, loss="margin")
    single = replace(attack, steps=1, loss="ce", start="zero", step_size=float(budget.eps))
    right = {"clean": 0, "single": 0, "robust": 0}
    for start in range(0, len(images), BATCH):
        part = images[start : start + BATCH]
        x, y = part.floats()
        source = PerExample(derive(seed, "validation"), torch.arange(start, start + len(part)))
        with evaluating(model), torch.no_grad():
            clean = model(x).argmax(1) == y
            right["clean"] += int(clean.sum())
            for name, tried in (("single", single), ("robust", attack)):
                x_adv = tried(attacked, x, y, rng=source)
                right[name] += int((clean & (model(x_adv).argmax(1) == y)).sum())
    shares = {name: count / len(images) for name, count in right.items()}
    name = f"pgd-{STEPS} on the margin at eps {budget.eps:.4g}"
    return Validation(**shares, attack=name, n=len(images))
