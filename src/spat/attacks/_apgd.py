"""Auto-PGD (Croce & Hein 2020): a step size that halves itself, and momentum.

    w = P( z + step * steepest(g) )
    z' = P( z + a (w - z) + (1 - a) (z - z_old) )          a = 1 in the first step, then 3/4

At a checkpoint a row whose loss rose too seldom, or whose best loss is that of the checkpoint
before, halves its step and goes back to its best point.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spat import rng as random
from spat.attacks import _ball as ball
from spat.attacks._search import Batch, Search, climb, stream
from spat.attacks._state import State, column
from spat.errors import UserError

INERTIA = 0.75  # the share of the new direction; the rest is the last displacement
FIRST, SHORTER, SHORTEST = 0.22, 0.03, 0.06  # periods between checkpoints, as shares of the steps


@dataclass(kw_only=True)
class ApgdState(State):
    """z: the iterate, and what the step rule remembers."""

    target: Tensor  # int64 [n]: the class the round aims at, the label if at none
    z: Tensor
    z_old: Tensor
    gradient: Tensor
    loss: Tensor  # [n] at z
    z_best: Tensor
    gradient_best: Tensor
    loss_best: Tensor
    step_size: Tensor
    rises: Tensor  # int64 [n]: steps since the checkpoint in which the loss rose
    period: Tensor  # int64 [n]: steps between the checkpoint before and the next
    waited: Tensor  # int64 [n]: steps since the checkpoint before
    loss_checked: Tensor  # [n] loss_best at the checkpoint before
    halved: Tensor  # bool [n]: the checkpoint before halved the step

    @property
    def best(self) -> Tensor:
        return self.z_best

    @property
    def score(self) -> Tensor:
        return self.loss_best


@dataclass(frozen=True, kw_only=True)
class APGD(Search[ApgdState]):
    """What the APGD attacks share; they differ in their loss.

    steps: gradient steps
    rho: at a checkpoint the step halves if the loss rose in at most this share of the steps
    """

    rows = ApgdState

    steps: int = 100
    rho: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise UserError(f"steps must be 0 or more, got {self.steps}.")
        if not 0 <= self.rho <= 1:
            raise UserError(f"rho must lie in [0, 1], got {self.rho:g}.")

    def loss(self, z: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """What is maximised, one number a row."""
        raise NotImplementedError

    def target(self, batch: Batch, round: Tensor) -> Tensor:
        return batch.y

    def begin(self, model: nn.Module, batch: Batch, round: int | Tensor = 0) -> ApgdState:
        rounds = batch.rounds(round)
        target = self.target(batch, rounds)
        z = self._start(batch, rounds)
        logits, loss, gradient = climb(model, z, lambda v: self.loss(v, batch.y, target))
        state = ApgdState(
            **self.fields(batch, rounds, self.steps),
            target=target,
            **dict.fromkeys(("z", "z_old", "z_best"), z),
            **dict.fromkeys(("gradient", "gradient_best"), gradient),
            # The official code compares the first step with an unfilled row of zeros, not with
            # the loss at the start; it decides some verdicts, so it is kept.
            loss=torch.zeros_like(loss),
            **dict.fromkeys(("loss_best", "loss_checked"), loss),
            step_size=2 * batch.eps,
            rises=torch.zeros_like(batch.index),
            period=torch.full_like(batch.index, max(int(FIRST * self.steps), 1)),
            waited=torch.zeros_like(batch.index),
            halved=torch.ones_like(batch.index, dtype=torch.bool),
        )
        state.note(z, logits.argmax(1) != batch.y)
        return state

    def advance(self, model: nn.Module, state: ApgdState) -> None:
        state.z, state.z_old = self._propose(state), state.z
        state.step = state.step + 1
        self._evaluate(model, state)
        self._accept(state)
        self._checkpoint(state)

    def _start(self, batch: Batch, round: Tensor) -> Tensor:
        """Noise rescaled to the very edge of the ball."""
        source, x = stream(batch.source, round), batch.x
        if self.norm == "linf":
            noise = 2 * random.uniform(source, x) - 1
        else:
            noise = random.normal(source, x)
        return torch.clamp(x + column(batch.eps, x) * ball.unit(self.norm, noise), 0.0, 1.0)

    def _propose(self, s: ApgdState) -> Tensor:
        a = column(torch.where(s.step == 0, 1.0, INERTIA).to(s.z), s.z)
        w = s.z + column(s.step_size, s.z) * ball.steepest(self.norm, s.gradient)
        w = ball.project(self.norm, w, s.x, s.eps)
        z = s.z + (w - s.z) * a + (s.z - s.z_old) * (1 - a)
        return ball.project(self.norm, z, s.x, s.eps)

    def _evaluate(self, model: nn.Module, s: ApgdState) -> None:
        """Loss and gradient at z."""
        y, target, before = s.y, s.target, s.loss
        logits, s.loss, s.gradient = climb(model, s.z, lambda v: self.loss(v, y, target))
        s.rises = s.rises + (s.loss > before)
        s.note(s.z, logits.argmax(1) != y)

    def _accept(self, s: ApgdState) -> None:
        """Keep the point of the highest loss."""
        better = s.loss > s.loss_best
        at = column(better, s.z)
        s.z_best = torch.where(at, s.z, s.z_best)
        s.gradient_best = torch.where(at, s.gradient, s.gradient_best)
        s.loss_best = torch.where(better, s.loss, s.loss_best)

    def _checkpoint(self, s: ApgdState) -> None:
        """Halve the steps that no longer pay, and start again from the best point.

        `z_old` stays, as in the official code: the next displacement is measured from it.
        """
        s.waited = s.waited + 1
        due = s.waited == s.period
        if not bool(due.any()):
            return
        seldom = s.rises <= self.rho * s.period
        stuck = ~s.halved & (s.loss_checked >= s.loss_best)
        halve = due & (seldom | stuck)
        s.step_size = torch.where(halve, s.step_size / 2, s.step_size)
        s.z = torch.where(column(halve, s.z), s.z_best, s.z)
        s.gradient = torch.where(column(halve, s.z), s.gradient_best, s.gradient)
        s.halved = torch.where(due, halve, s.halved)
        s.loss_checked = torch.where(due, s.loss_best, s.loss_checked)
        s.rises, s.waited = s.rises.where(~due, 0), s.waited.where(~due, 0)
        shorter = s.period - max(int(SHORTER * self.steps), 1)
        shorter = shorter.clamp(min=max(int(SHORTEST * self.steps), 1))
        s.period = torch.where(due, shorter, s.period)


@dataclass(frozen=True, kw_only=True)
class RestartedAPGD(APGD):
    """APGD whose rounds are restarts.

    restarts: runs from new starts, for the examples not yet broken
    """

    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restarts < 1:
            raise UserError(f"restarts must be 1 or more, got {self.restarts}.")

    def rounds(self, classes: int) -> int:
        return self.restarts
