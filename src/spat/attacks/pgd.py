"""Projected gradient descent (Madry et al. 2018): start, step along the gradient, project.

    x_0 = x + start,   x_{k+1} = P( x_k + step_size * steepest( grad_x loss(x_k) ) )

P projects on the ball of radius eps around x and then on [0, 1], outside of the autograd graph:
a clamp inside it would zero the gradients of saturated pixels and fake robustness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from spat import losses
from spat import rng as random
from spat.attacks._base import Attack, Rng, as_source, check_answer, check_batch, first_logits
from spat.errors import UserError
from spat.fast import Split, run_blocks, split
from spat.modes import borrowed
from spat.threat import Budget, column

Watch = Callable[[slice, Tensor], None]
NORMAL_START = 1e-3  # the spread of the Gaussian start of TRADES, MART and SPAT


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Projected gradient descent with explicit loss, start, steps and step size.

    steps: gradient steps
    step_size: length of a step; by default 2 eps / steps, so that any point of the ball is in reach
    start: zero, uniform in the ball (clipped to the pixel box), or normal: 0.001 x standard normal
    loss: what is maximised: ce, margin (Carlini-Wagner), dlr, or kl from the clean prediction
    loss_scale: multiplies the logits first: a cosine head (logits within [-1, 1]) needs its scale
    restarts: repeats from new starts; the worst result of each example is kept
    """

    steps: int = 20
    step_size: float | None = None
    start: Literal["zero", "uniform", "normal"] = "uniform"
    loss: Literal["ce", "margin", "dlr", "kl"] = "ce"
    loss_scale: float = 1.0
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        losses.attack_loss(self.loss)
        if self.start not in ("zero", "uniform", "normal"):
            raise UserError(f"start must be zero, uniform or normal, got {self.start!r}.")
        if self.steps < 0:
            raise UserError(f"steps must be 0 or more, got {self.steps}.")
        if self.restarts < 1:
            raise UserError(f"restarts must be 1 or more, got {self.restarts}.")
        if not self.loss_scale > 0:
            raise UserError(f"loss_scale must be positive, got {self.loss_scale:g}.")
        if self.step_size is not None and not self.step_size >= 0:
            raise UserError(f"step_size must be 0 or more, got {self.step_size:g}.")

    @property
    def named_loss(self) -> losses.AttackLoss:
        return losses.attack_loss(self.loss)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, source: random.Source) -> Tensor:
        if self.restarts == 1:
            return self.ascend(model, x, y, source, clean=self._clean(model, x, y))
        clean = first_logits(model, x, y)
        x_adv = self.ascend(model, x, y, source, clean=clean)
        worst = self._badness(model, x_adv, y, clean)
        for restart in range(1, self.restarts):
            again = random.fork(source, "restart", restart)
            x_new = self.ascend(model, x, y, again, clean=clean)
            badness = self._badness(model, x_new, y, clean)
            better = badness > worst
            x_adv[better], worst = x_new[better], torch.maximum(badness, worst)
        return x_adv

    def craft(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        loss: losses.AttackLoss | None = None,
        noise: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """One run for a defence's inner maximisation: its own loss, start and observer.

        loss: (adversarial logits, labels, clean logits) -> [n]; by default the loss of the settings
        noise: the starting perturbation x_0 - x, in place of a drawn one
        watch: called as watch(rows, logits of x_k) before each step, with rows of the batch
        """
        check_batch(x, y)
        with borrowed(model, x.device):
            clean = self._clean(model, x, y) if loss is None else first_logits(model, x, y)
            return self.ascend(
                model, x, y, as_source(rng), clean=clean, loss=loss, noise=noise, watch=watch
            )

    def ascend(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        source: random.Source,
        *,
        clean: Tensor | None,
        loss: losses.AttackLoss | None = None,
        noise: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """The loop itself, on a borrowed model; clean logits are computed once, not once a step.

        clean: None where the loss does not look at them; then the first step's logits are checked

        The batch is worked on in blocks where the model allows it; the start is drawn before.
        """
        objective, x = loss or self.named_loss, x.detach()
        scaled = None if clean is None else self.loss_scale * _precise(clean)
        start = self._begin(x, source, noise)

        def climb(rows: slice) -> Tensor:
            before = None if scaled is None else scaled[rows]

            def value(z: Tensor) -> Tensor:
                z = _precise(z)  # the loss is never computed in low precision
                if watch is not None:
                    watch(rows, z.detach())
                return objective(self.loss_scale * z, y[rows], before).sum()

            seen = value if clean is not None else _checked(value, y[rows])
            return self._climb(model, start[rows].clone(), x[rows], seen)

        whole = isinstance(self.eps, Tensor)  # a budget for each example stays with its batch
        by = Split(len(x)) if whole else split(model, len(x), x.device)
        return self.threat.project(run_blocks(climb, len(x), by), x)

    def _climb(
        self, model: nn.Module, x_adv: Tensor, x: Tensor, value: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """All steps, from `x_adv`, which is overwritten; `value` of the logits is maximised."""
        move = self.threat.mover(x, column(self._step(), x))
        for _ in range(self.steps):
            x_adv.requires_grad_()
            (gradient,) = torch.autograd.grad(value(model(x_adv)), x_adv)
            x_adv = move(x_adv.detach(), gradient)
        return x_adv

    def _clean(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
        """Clean logits, unless the loss of the settings does without and a step looks at others."""
        spared = self.loss != "kl" and self.steps > 0
        return None if spared else first_logits(model, x, y)

    def _step(self) -> Budget:
        if self.step_size is not None:
            return self.step_size
        return 2 * self.eps / max(self.steps, 1)

    def _begin(self, x: Tensor, source: random.Source, noise: Tensor | None) -> Tensor:
        """The first iterate; a Gaussian start is not clipped, as in the codes that use it."""
        if noise is None:
            if self.start == "zero":
                return x.clone()
            uniform = self.start == "uniform"
            noise = self.threat.start(x, source) if uniform else self._normal(x, source)
        x_adv = x + noise.to(x)
        return x_adv if self.start == "normal" else self.threat.project(x_adv, x)

    def _normal(self, x: Tensor, source: random.Source) -> Tensor:
        return NORMAL_START * random.normal(source, x)

    def _badness(self, model: nn.Module, x_adv: Tensor, y: Tensor, clean: Tensor) -> Tensor:
        """Order results of restarts: any misclassified one before any other, then by loss."""
        with torch.no_grad():
            z = model(x_adv).to(clean.dtype)
            value = self.named_loss(self.loss_scale * z, y, self.loss_scale * clean)
        broken = z.argmax(1) != y
        return torch.where(broken, torch.inf, value)


def _precise(z: Tensor) -> Tensor:
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _checked(value: Callable[[Tensor], Tensor], y: Tensor) -> Callable[[Tensor], Tensor]:
    """`value`, which looks at its first logits as one looks at a model's first answer."""
    first = True

    def once(z: Tensor) -> Tensor:
        nonlocal first
        if first:
            check_answer(z, y)
        first = False
        return value(z)

    return once
