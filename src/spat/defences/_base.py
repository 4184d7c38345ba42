"""What every defence is: an inner attack, one or two training passes, and a loss of logits.

x'   = attack(model, x, y)            inner maximisation, model in eval mode
z, z' = model(x), model(x')           training passes, each module in its own mode
loss = mean over the batch of terms(z, z', y).per_example
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.attacks.pgd import PGD
from spat.errors import UserError
from spat.losses import AttackLoss

Passes = Literal["clean", "adversarial", "both"]


@dataclass(frozen=True)
class Progress:
    """Where training is. `epoch` counts from 1, `step` (updates done before this one) from 0."""

    epoch: int = 1
    epochs: int = 1
    step: int = 0
    steps: int = 1


@dataclass(frozen=True)
class Terms:
    """A defence's loss: `per_example` [n] averages to `loss`; `named` holds the paper's parts."""

    per_example: Tensor
    named: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor:
        return self.per_example.mean()

    def __getitem__(self, name: str) -> Tensor:
        return self.named[name]


@dataclass(frozen=True)
class Crafted:
    """What the inner attack made: the images, and what it saw on the way (GAIRAT's kappa)."""

    x_adv: Tensor | None
    seen: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Defence:
    """A frozen value: settings, an inner attack and a pure loss."""

    attack: PGD = PGD(steps=10, step_size=2 / 255)

    passes: ClassVar[Passes] = "adversarial"
    head: ClassVar[Literal["any", "cosine"]] = "any"

    def terms(self, clean: Any, adv: Any, labels: Tensor, **context: Any) -> Terms:
        """The loss as a pure function of logits [n, C]; `clean` or `adv` is None if unused.

        context: `progress`, and whatever the inner attack saw (`Crafted.seen`)
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
        return Crafted(self.attack.craft(model, x, y, rng=rng, loss=loss, noise=noise))

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
        """Make the adversarial batch and run the training passes: clean first, then adversarial.

        surrogate: an equivalent copy of the model to attack in its place (a faster one, say)
        """
        crafted = self.craft(model if surrogate is None else surrogate, x, y, rng=rng)
        clean = None if self.passes == "adversarial" else model(x)
        adv = None if crafted.x_adv is None else model(crafted.x_adv)
        return self.terms(clean, adv, y, progress=progress, **crafted.seen)


def positive(defence: str, **values: float) -> None:
    """Refuse settings that must be above zero."""
    for name, value in values.items():
        if not value > 0:
            raise UserError(f"{name} of {defence} must be positive, got {value:g}.")


def in_range(defence: str, low: float, high: float, **values: float) -> None:
    """Refuse settings outside [low, high]."""
    for name, value in values.items():
        if not low <= value <= high:
            raise UserError(f"{name} of {defence} must lie in [{low:g}, {high:g}], got {value:g}.")
