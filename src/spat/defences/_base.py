"""What every defence is: an inner attack, one or two training passes, and a loss of logits.

x'    = inner(model, x, y)             inner maximisation, the model in eval mode
z, z' = model(x), model(x')            training passes, each module in its own mode
loss  = mean over the batch of terms(z, z', y).per_example

Published codes differ in the mode of BatchNorm during the attack and in how many training passes
they make. Here the attack always sees eval mode, and BatchNorm is updated once a pass: once a step
where `passes` is clean or adversarial, twice where it is both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.attacks.pgd import PGD
from spat.errors import UserError, unknown
from spat.losses import AttackLoss
from spat.world import ALONE, World

Passes = Literal["clean", "adversarial", "both"]
Head = Literal["linear", "cosine", "any"]


@dataclass(frozen=True)
class Progress:
    """Where training is. `epoch` counts from 1, `step` (updates done before this one) from 0."""

    epoch: int = 1
    epochs: int = 1
    step: int = 0
    steps: int = 1


@dataclass(frozen=True)
class Terms:
    """A defence's loss: `per_example` [n] averages to `loss`; `named` holds the parts, each [n]."""

    per_example: Tensor
    named: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor:
        return self.per_example.mean()

    def __getitem__(self, name: str) -> Tensor:
        return self.named[name]


@dataclass(frozen=True)
class Crafted:
    """What the inner attack made: the images, and what `terms` needs besides (GAIRAT's kappa).

    world: the processes that share the batch, for what is computed over the whole of it
    """

    x_adv: Tensor | None
    seen: Mapping[str, Any] = field(default_factory=dict)
    world: World = ALONE


@dataclass(frozen=True, kw_only=True)
class Defence:
    """A frozen value: settings, an inner attack and a pure loss."""

    attack: PGD = PGD(steps=10, step_size=2 / 255)

    @property
    def passes(self) -> Passes:
        """Which images the training passes see."""
        return "adversarial"

    @property
    def head(self) -> Head:
        """The model's last layer; a loss made for logits means little on bare cosines."""
        return "linear"

    @property
    def inner(self) -> PGD:
        """The inner attack as it is run; some defences derive parts of it from other settings."""
        return self.attack

    @property
    def warmup_epochs(self) -> int:
        """How many epochs are trained on a plainer loss first."""
        return 0

    @property
    def replays(self) -> int:
        """How many updates in a row are made on each batch."""
        return 1

    def carry(self, crafted: Crafted, x: Tensor) -> Tensor | None:
        """A perturbation that lasts to the next update, where `craft` gets it as `noise`."""
        return None

    def ema_decay(self, step: int) -> float | None:
        """How much of the averaged weights survives update `step` (from 0); None: no average."""
        return None

    def terms(self, clean: Any, adv: Any, labels: Tensor, **context: Any) -> Terms:
        """The loss as a pure function of logits [n, C]; `clean` or `adv` is None if unused.

        context: `progress`, `world`, and whatever the inner attack saw (`Crafted.seen`)
        """
        raise NotImplementedError

    def inner_loss(self) -> AttackLoss | None:
        """What the inner attack maximises; None stands for the loss of its settings."""
        return None

    def craft(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        noise: Tensor | None = None,
    ) -> Crafted:
        """The inner maximisation; `noise` replaces the drawn start x'_0 - x."""
        if self.passes == "clean":
            return Crafted(None)
        loss = self.inner_loss()
        return Crafted(self.inner.craft(model, x, y, rng=rng, loss=loss, noise=noise))

    def respond(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        crafted: Crafted,
        progress: Progress | None = None,
    ) -> Terms:
        """The training passes, clean first, then adversarial, and the loss of their logits."""
        clean = None if self.passes == "adversarial" else precise(model(x))
        adv = None if crafted.x_adv is None else precise(model(crafted.x_adv))
        context = {"progress": progress, "world": crafted.world, **crafted.seen}
        return self.terms(clean, adv, y, **context)

    def objective(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        progress: Progress | None = None,
        surrogate: nn.Module | None = None,
    ) -> Terms:
        """Make the adversarial batch, run the training passes and return the loss.

        surrogate: an equivalent copy of the model to attack in its place (a faster one, say)
        """
        crafted = self.craft(model if surrogate is None else surrogate, x, y, rng=rng)
        return self.respond(model, x, y, crafted, progress)

    def warming_up(self, progress: Progress | None) -> bool:
        return progress is not None and progress.epoch <= self.warmup_epochs


def precise(z: Tensor) -> Tensor:
    """No loss is computed in low precision, whatever the model runs in."""
    return z.to(torch.promote_types(z.dtype, torch.float32))


def in_proportion(log_omega: Tensor, world: World = ALONE) -> Tensor:
    """Weights proportional to omega [n], of mean 1 over the batch that all processes share."""
    return (log_omega - world.log_mean(log_omega)).exp()


def positive(defence: str, **values: float) -> None:
    """Refuse settings that are not finite numbers above zero."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name} of {defence} must be positive, got {value:g}.")


def in_range(defence: str, low: float, high: float, **values: float) -> None:
    """Refuse settings outside [low, high]."""
    for name, value in values.items():
        if not low <= value <= high:
            raise UserError(f"{name} of {defence} must lie in [{low:g}, {high:g}], got {value:g}.")


def one_of(defence: str, known: tuple[str, ...], **values: str) -> None:
    """Refuse settings that are not among the known words."""
    for name, value in values.items():
        if value not in known:
            raise unknown(f"{name} of {defence}", value, known)


def need_rival(defence: str, logits: Tensor) -> None:
    """Refuse logits of a single class, where there is no class to be confused with."""
    if logits.shape[1] < 2:
        raise UserError(
            f"{defence} compares the label with its best rival and needs at least 2 classes, "
            f"got logits of shape {tuple(logits.shape)}."
        )
