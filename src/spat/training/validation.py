"""By what the best epoch is chosen: accuracy on held-out images under a short attack."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from spat.attacks.pgd import PGD
from spat.datasets import Images
from spat.modes import evaluating
from spat.rng import PerExample, derive
from spat.world import ALONE, World

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
    model: nn.Module,
    attacked: nn.Module,
    images: Images,
    budget: PGD,
    seed: int,
    world: World = ALONE,
    at_once: int = BATCH,
) -> Validation:
    """Clean accuracy, and accuracy under a margin attack, which no scale of the logits weakens.

    attacked: a faster equivalent, say; the verdict is the model's own all the same
    budget: an attack with the eps and norm to defend against; N-FGSM trains beyond its own
    world: each of its processes attacks its share; what all count, and decide by, is the same
    at_once: images that training has memory for
    """
    attack = PGD(eps=budget.eps, norm=budget.norm, steps=STEPS, loss="margin")
    single = replace(attack, steps=1, loss="ce", start="zero", step_size=float(budget.eps))
    right = {"clean": 0, "single": 0, "robust": 0}
    mine = world.mine(torch.arange(len(images)))
    for places in torch.split(mine, min(at_once, BATCH)):
        x, y = images.floats(places)
        source = PerExample(derive(seed, "validation"), places)
        with evaluating(model), torch.no_grad():
            clean = model(x).argmax(1) == y
            right["clean"] += int(clean.sum())
            for name, tried in (("single", single), ("robust", attack)):
                x_adv = tried(attacked, x, y, rng=source)
                right[name] += int((clean & (model(x_adv).argmax(1) == y)).sum())
    counts = world.total(torch.tensor(list(right.values()), device=world.device)).tolist()
    shares = {name: count / len(images) for name, count in zip(right, counts, strict=True)}
    name = f"pgd-{STEPS} on the margin at eps {budget.eps:.4g}"
    return Validation(**shares, attack=name, n=len(images))
