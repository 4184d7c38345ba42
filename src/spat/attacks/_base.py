"""The front door of every attack: check what comes in, borrow the model, keep to the budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spat import rng as random
from spat.contracts import check_images, check_labels, check_logits, check_module
from spat.modes import borrowed
from spat.threat import Budget, Norm, Threat, threat

Rng = random.Source | int | None


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A frozen value: settings only. Call it with a model and images.

    eps: budget: 0 to 1 for linf, such as 8/255; a Euclidean length for l2
    norm: linf or l2
    """

    eps: Budget = 8 / 255
    norm: Norm = "linf"

    def __post_init__(self) -> None:
        threat(self.norm, self.eps)  # fails early on a wrong norm or budget

    @property
    def threat(self) -> Threat:
        return threat(self.norm, self.eps)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, rng: Rng = None) -> Tensor:
        """Adversarial images: x's shape, dtype and device, detached, inside the threat set.

        The model comes back as it was found, and the global generators are not touched.
        `rng` is a generator, a `PerExample` source or a seed; without one the seed is 0.
        """
        check_module(model)
        check_batch(x, y)
        with borrowed(model, x.device):
            x_adv = self.perturb(model, x, y.long(), as_source(rng))
        return self.threat.project(x_adv.detach(), x.detach()).to(x.dtype)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, source: random.Source) -> Tensor:
        """What an author of an attack writes; the model is in eval mode and gradients are on."""
        raise NotImplementedError


def check_batch(x: Tensor, y: Tensor) -> None:
    check_images(x)
    check_labels(y, len(x))


def as_source(rng: Rng) -> random.Source:
    if rng is None or isinstance(rng, int):
        return random.generator(rng or 0, "attack")
    return rng


def first_logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The logits of clean images without a graph, checked as a model's first answer should be."""
    with torch.no_grad():
        z: Tensor = model(x)
    check_answer(z, y)
    return z


def check_answer(z: Tensor, y: Tensor) -> None:
    """What a model's first answer must be."""
    check_logits(z, len(y))
    check_labels(y, len(y), z.shape[1])
