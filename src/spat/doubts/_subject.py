"""What the doubts share: the model under audit, its images, the attack, and what was computed.

Only rightly classified images are kept: the others are lost before any attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from spat import losses
from spat.attacks._base import Attack
from spat.attacks.pgd import PGD
from spat.rng import PerExample, derive
from spat.threat import column

GPU_BATCH, CPU_BATCH = 512, 64


class Connected(nn.Module):
    """A model whose logits always have a gradient: zero where its own code cuts the graph.

    So every attack runs, and a model that gives no gradient is found robust to them, as it claims.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.model(x)
        return z + 0 * x.flatten(1).sum(1, keepdim=True) if x.requires_grad else z


@dataclass(frozen=True)
class Subject:
    """A borrowed model in eval mode and the rightly classified ones of `total` images.

    source: another model for the transfer attack, if one was given
    training: the modules that were handed over in training mode
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    attack: Attack
    total: int
    seed: int = 0
    source: nn.Module | None = None
    training: tuple[nn.Module, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def open(self) -> Connected:
        """The model as attacks get it."""
        return Connected(self.model)

    @cached_property
    def clean(self) -> Tensor:
        """[n, C] logits of the clean images."""
        return self.logits(self.x)

    @property
    def classes(self) -> int:
        return self.clean.shape[1]

    @cached_property
    def adversarial(self) -> Tensor:
        """What the attack in question makes of the images."""
        return self.craft(self.attack)

    @cached_property
    def adversarial_margin(self) -> Tensor:
        return self.margin(self.adversarial)

    @cached_property
    def held(self) -> Tensor:
        """bool [n]: examples that the attack in question does not break."""
        return self.holds(self.adversarial)

    @property
    def loss_scale(self) -> float:
        return self.attack.loss_scale if isinstance(self.attack, PGD) else 1.0

    def only(self, rows: Tensor) -> Subject:
        """The same model and attack on some of the images."""
        return replace(self, x=self.x[rows], y=self.y[rows])

    def random(self, *purpose: int | str) -> PerExample:
        return PerExample(derive(self.seed, "audit", *purpose), torch.arange(len(self)))

    def logits(self, x: Tensor, model: nn.Module | None = None) -> Tensor:
        """float32 or wider, without a graph, batch by batch."""
        with torch.no_grad():
            z = torch.cat([(model or self.model)(part) for part in self.batches(x)])
        return z.to(torch.promote_types(z.dtype, torch.float32))

    def margin(self, x: Tensor) -> Tensor:
        return losses.margin(self.logits(x), self.y)

    def holds(self, x: Tensor) -> Tensor:
        return self.logits(x).argmax(1) == self.y

    def craft(self, attack: Attack, *, on: nn.Module | None = None) -> Tensor:
        """Adversarial versions of all images; the same random numbers for every attack."""
        rng, model = self.random("attack"), on or self.open
        pieces = [
            attack(model, self.x[at], self.y[at], rng=rng[at])
            for at in self.batches(torch.arange(len(self), device=self.x.device))
        ]
        return torch.cat(pieces)

    def noisy(self, k: int) -> Tensor:
        """The images under the k-th random perturbation at the far end of the budget."""
        start = self.attack.threat.start(self.x, self.random("noise", k))
        far = self.attack.threat.steepest(start) * column(self.attack.eps, self.x)
        return self.attack.threat.project(self.x + far, self.x)

    def gradient(self, x: Tensor, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Of a loss of (logits, labels, clean logits) with respect to the images."""
        pieces = []
        for at in self.batches(torch.arange(len(x), device=x.device)):
            part = x[at].detach().requires_grad_()
            z = self.open(part)
            value = loss(self.loss_scale * z, self.y[at], self.loss_scale * self.clean[at])
            pieces.append(torch.autograd.grad(value.sum(), part)[0])
        return torch.cat(pieces)

    def batches(self, x: Tensor) -> tuple[Tensor, ...]:
        size = GPU_BATCH if self.x.device.type == "cuda" else CPU_BATCH
        return torch.split(x, size)


def changed(attack: Attack, **settings: Any) -> Attack | None:
    """The attack with other settings, or None if it has no such ones."""
    return replace(attack, **settings) if has(attack, settings) else None


def has(attack: Attack, settings: Mapping[str, Any]) -> bool:
    return all(hasattr(attack, name) for name in settings)


def with_eps(attack: Attack, eps: float) -> Attack:
    """The attack with another budget; a step keeps its share of it."""
    step = getattr(attack, "step_size", None)
    if step is None:
        return replace(attack, eps=eps)
    return replace(attack, eps=eps, step_size=step * eps / float(attack.eps))  # type: ignore[call-arg]
