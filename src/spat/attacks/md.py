"""Margin decomposition (Ma et al. 2020): first one term of the margin, then the whole.

The margin max_{j != y} z_j - z_y is a difference, and a defence can make the gradient of one term
drown that of the other. So a run climbs one term alone in its first half, -z_y in even rounds and
max_{j != y} z_j in odd ones, and the margin in its second half. As in the authors' release the very
first step raises z_y instead, which spreads the starts, each half begins with steps of 2 eps that
shrink along a cosine, and any misclassified iterate counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spat import losses
from spat import rng as random
from spat.attacks import _ball as ball
from spat.attacks._search import Batch, Search, climb, stream
from spat.attacks._state import State, column
from spat.errors import UserError


@dataclass(kw_only=True)
class MdState(State):
    """z: the iterate."""

    z: Tensor
    gradient: Tensor  # at z, of the loss of the next step
    margin: Tensor  # [n] at z

    @property
    def best(self) -> Tensor:
        return self.z

    @property
    def score(self) -> Tensor:
        return -self.margin


@dataclass(frozen=True, kw_only=True)
class MD(Search[MdState]):
    """Margin decomposition attack (Ma et al. 2020): one logit at a time, then their margin.

    steps: gradient steps of a run; the first half climbs one logit
    restarts: pairs of runs, one for either term, for the examples not yet broken
    """

    rows = MdState

    steps: int = 50
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise UserError(f"steps must be 0 or more, got {self.steps}.")
        if self.restarts < 1:
            raise UserError(f"restarts must be 1 or more, got {self.restarts}.")

    def rounds(self, classes: int) -> int:
        return 2 * self.restarts

    def begin(self, model: nn.Module, batch: Batch, round: int | Tensor = 0) -> MdState:
        rounds, x = batch.rounds(round), batch.x
        noise = self._noise(stream(batch.source, rounds), x)
        state = MdState(
            **self.fields(batch, rounds, self.steps),
            z=ball.project(self.norm, x + column(batch.eps, x) * noise, x, batch.eps),
            gradient=x,
            margin=batch.eps,
        )
        self._evaluate(model, state)
        return state

    def advance(self, model: nn.Module, state: MdState) -> None:
        move = column(self._step_size(state), state.z) * ball.steepest(self.norm, state.gradient)
        state.z = ball.project(self.norm, state.z + move, state.x, state.eps)
        state.step = state.step + 1
        self._evaluate(model, state)

    def _noise(self, source: random.Source, x: Tensor) -> Tensor:
        """Uniform in the unit ball of Linf; on the sphere in L2."""
        if self.norm == "linf":
            return 2 * random.uniform(source, x) - 1
        return ball.unit("l2", random.normal(source, x))

    def _evaluate(self, model: nn.Module, s: MdState) -> None:
        def loss(z: Tensor) -> Tensor:
            own, margin = z.gather(1, s.y[:, None]).squeeze(1), losses.margin(z, s.y)
            term = torch.where(s.round % 2 == 0, -own, own - margin)
            decomposed = torch.where(s.step == 0, own, term)
            return torch.where(s.step < self.steps // 2, decomposed, -margin)

        logits, _, s.gradient = climb(model, s.z, loss)
        s.margin = losses.margin(logits, s.y)
        s.note(s.z, logits.argmax(1) != s.y)

    def _step_size(self, s: MdState) -> Tensor:
        half = self.steps // 2
        first = s.step < half
        t = torch.where(first, s.step, s.step - half) / torch.where(first, half, self.steps - half)
        return s.eps * (1 + torch.cos(math.pi * t)).to(s.eps)
