"""AWP, adversarial weight perturbation (Wu, Xia & Wang, NeurIPS 2020), around any defence.

    v_l  = gamma ||w_l|| g_l / ||g_l||,    g = grad_w loss(w; x, x', y)        for each layer l
    update w with the gradient of loss(w + v; x, x', y) at w + v

loss: the base defence's.   x': its adversarial images.   w_l: matrices and kernels; biases and
BatchNorm's parameters are not perturbed. v is a constant: no gradient flows through it.
gamma: 0.005 for TRADES, 0.01 for Madry's loss.
One more pass forward and back gives g, with BatchNorm's statistics left as they were, then the
training passes run with w + v in place of w. The model's own weights are never written to, so there
is nothing to restore. The authors' code steps from w + v and subtracts v again: the same, but for
weight decay, which there shrinks w + v. g is that of the whole batch, whoever holds its images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.attacks.pgd import PGD
from spat.catalog import build
from spat.defences._base import Crafted, Defence, Head, Passes, Progress, Terms, in_range, positive
from spat.defences._self_paced import Parts
from spat.errors import UserError
from spat.losses import AttackLoss
from spat.modes import Substituted

PRESETS = {
    "trades": {"base": "trades"},
    "madry": {"base": "madry", "gamma": 0.01, "attack.start": "uniform"},
    "mart": {"base": "mart"},
    "spat": {"base": "spat"},
    "official": {"base": "trades", "warmup": 9},
}
TINY = 1e-20  # keeps a zero gradient from becoming NaN when it is normalised


@dataclass(frozen=True, kw_only=True)
class AWP(Defence):
    """Any defence, its loss minimised at weights perturbed to raise it.

    base: name of the defence that it wraps
    gamma: length of the perturbation of each layer, as a share of its weights' length
    warmup: epochs trained on the base itself first
    weight: of the base's robustness term; left out, its own
    sp: which terms of the base are self-paced; left out, its own
    attack: the inner attack, in place of the base's
    """

    base: str = "trades"
    gamma: float = 0.005
    warmup: int = 0
    weight: float | None = None
    sp: Parts | None = None
    attack: PGD = PGD(steps=10, step_size=2 / 255, start="normal")

    def __post_init__(self) -> None:
        positive("awp", gamma=self.gamma)
        in_range("awp", 0, float("inf"), warmup=self.warmup)
        if self.base.startswith("awp"):
            raise UserError(f"base of awp must be another defence, got {self.base!r}.")
        _ = self.inside  # an unknown base, or a setting it lacks, fails here

    @cached_property
    def inside(self) -> Defence:
        """The defence that is wrapped."""
        given = {"weight": self.weight, "sp": self.sp}
        base = build("defence", self.base, **{k: v for k, v in given.items() if v is not None})
        return cast(Defence, replace(base, attack=self.attack))

    @property
    def passes(self) -> Passes:
        return self.inside.passes

    @property
    def head(self) -> Head:
        return self.inside.head

    @property
    def scale(self) -> float:
        """What the base multiplies cosines by, for the model that is built for it."""
        return float(getattr(self.inside, "scale", 1.0))

    @property
    def head_bias(self) -> bool:
        return bool(getattr(self.inside, "head_bias", False))

    @property
    def inner(self) -> PGD:
        return self.inside.inner

    @property
    def warmup_epochs(self) -> int:
        return max(self.warmup, self.inside.warmup_epochs)

    def ema_decay(self, step: int) -> float | None:
        return self.inside.ema_decay(step)

    def inner_loss(self) -> AttackLoss | None:
        return self.inside.inner_loss()

    def craft(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        noise: Tensor | None = None,
    ) -> Crafted:
        return self.inside.craft(model, x, y, rng=rng, noise=noise)

    def terms(self, clean: Any, adv: Any, labels: Tensor, **context: Any) -> Terms:
        """The base's loss, whatever the weights that the logits come from."""
        return self.inside.terms(clean, adv, labels, **context)

    def respond(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        crafted: Crafted,
        progress: Progress | None = None,
    ) -> Terms:
        if progress is not None and progress.epoch <= self.warmup:
            return self.inside.respond(model, x, y, crafted, progress)
        v = self.perturbation(model, x, y, crafted, progress)
        moved = {name: w + v[name] for name, w in model.named_parameters() if name in v}
        return self.inside.respond(Substituted(model, moved), x, y, crafted, progress)

    def perturbation(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        crafted: Crafted,
        progress: Progress | None = None,
    ) -> dict[str, Tensor]:
        """v by the name of the parameter; the pass for it works on copies of the buffers."""
        w = {n: p.detach().requires_grad_() for n, p in model.named_parameters() if p.ndim > 1}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        world, seen = crafted.world, Substituted(model, w | buffers)

        def gradients() -> Sequence[Tensor]:
            terms = self.inside.respond(seen, x, y, crafted, progress)
            loss = world.share(len(y), world.count(len(y))) * terms.loss
            return torch.autograd.grad(
                loss, list(w.values()), allow_unused=True, materialize_grads=True
            )

        whole = world.averaged(gradients)
        return {n: self._along(g, w[n]) for n, g in zip(w, whole, strict=True)}

    @torch.no_grad()
    def _along(self, g: Tensor, w: Tensor) -> Tensor:
        """A step along g whose length is the share gamma of w's."""
        length: Tensor = self.gamma * w.norm() / (g.norm() + TINY)
        return length * g
