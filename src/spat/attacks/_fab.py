"""FAB (Croce & Hein 2020): walk along the decision boundary towards the clean image.

Around the iterate z the gap between two logits is taken as linear, d(z) + w.(p - z), zero on a
hyperplane. d1 leads from z to it and d2 from the clean image x, the shortest ways in the box:

    z' = clamp( (z + eta d1) (1 - alpha) + (x + eta d2) alpha ),    alpha = |d1| / (|d1| + |d2|)

A z' that is misclassified is pulled back, to x + beta (z' - x). The official code goes on to the
smallest distance; here a row is done when it is within eps, which gives the same verdict.

Whether z' is misclassified takes a forward of its own, as the hyperplane is laid through the point
pulled back. Beyond eps the answer is nearly always yes, and breaks nothing: `frugal` assumes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spat.attacks import _ball as ball
from spat.attacks._patience import look, no_looks
from spat.attacks._plane import shortest_move
from spat.attacks._search import Batch, Search, wide
from spat.attacks._state import State, column
from spat.errors import UserError

SMALLEST_MOVE = 1e-8


@dataclass(kw_only=True)
class FabState(State):
    """z: the iterate, and the hyperplane in its place."""

    target: Tensor  # int64 [n]: the class the round aims at, the label if at none
    z: Tensor
    gap: Tensor  # [n] logit of the other class minus that of the label, at z
    gradient: Tensor  # of the gap, at z
    history: Tensor  # [n, looks] see `_patience`
    distance: Tensor  # [n] to the nearest image taken for misclassified; infinite before one is


@dataclass(frozen=True, kw_only=True)
class BoundarySearch(Search[FabState]):
    """What FAB and FAB-T share; they differ in the classes whose boundary they seek.

    steps: hyperplanes, each a forward and a gradient
    alpha_max: largest share of the way that is taken from the clean image
    eta: overshoot beyond the hyperplane
    beta: how much of the change is kept after a misclassified iterate
    frugal: take iterates beyond eps for misclassified: a forward less a step, at worst weaker
    patience: give up rows whose gain so far, times this, would not do; 0 gives up none
    """

    rows = FabState

    steps: int = 100
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    frugal: bool = False
    patience: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise UserError(f"steps must be 0 or more, got {self.steps}.")
        for name, value in (("alpha_max", self.alpha_max), ("beta", self.beta)):
            if not 0 <= value <= 1:
                raise UserError(f"{name} must lie in [0, 1], got {value:g}.")
        if not self.eta >= 1:
            raise UserError(f"eta must be 1 or more, got {self.eta:g}.")
        if not self.patience >= 0:
            raise UserError(f"patience must be 0 or more, got {self.patience:g}.")

    def plane(self, z: Tensor, logits: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The gap and its gradient at z, from the graph of the logits."""
        raise NotImplementedError

    def gradients(self, classes: int) -> int:
        """Backward passes that `plane` takes."""
        raise NotImplementedError

    def target(self, batch: Batch, round: Tensor) -> Tensor:
        return batch.y

    def begin(self, model: nn.Module, batch: Batch, round: int | Tensor = 0) -> FabState:
        rounds = batch.rounds(round)
        target = self.target(batch, rounds)
        gap, gradient = self._linearise(model, batch.x, batch.y, target)
        return FabState(
            **self.fields(batch, rounds, self.steps),
            target=target,
            z=batch.x,
            gap=gap,
            gradient=gradient,
            history=no_looks(batch.eps),
            distance=torch.full_like(batch.eps, torch.inf),
        )

    def advance(self, model: nn.Module, state: FabState) -> None:
        state.z = self._propose(state)
        state.step = state.step + 1
        if self.frugal:
            self._evaluate_near(model, state)
        else:
            self._evaluate(model, state)
        if self.patience:
            missing = state.distance - state.eps
            state.history, state.limit = look(
                state.history, missing, state.step, state.limit, self.patience
            )

    def _propose(self, s: FabState) -> Tensor:
        """Between the nearest points of the hyperplane to z and to x, and a little beyond."""
        z, x, w = s.z.flatten(1), s.x.flatten(1), s.gradient.flatten(1)
        need = torch.cat([-s.gap, (w * (z - x)).sum(1) - s.gap])
        moves = shortest_move(self.norm, torch.cat([z, x]), w.repeat(2, 1), need)
        d1, d2 = moves.chunk(2)
        n1, n2 = (ball.size(self.norm, d).clamp(min=SMALLEST_MOVE) for d in (d1, d2))
        alpha = (n1 / (n1 + n2)).clamp(0.0, self.alpha_max)[:, None]
        moved = (z + self.eta * d1) * (1 - alpha) + (x + self.eta * d2) * alpha
        return moved.clamp_(0.0, 1.0).reshape(s.z.shape)

    def _evaluate(self, model: nn.Module, s: FabState) -> None:
        """Is z misclassified; and the hyperplane of the next step.

        The forward that answers the first also serves the second, save for the rows that are
        pulled back. Where these are few they alone are looked at again; else all rows are.
        """
        z = s.z.detach().requires_grad_()
        logits = wide(model(z))
        wrong = logits.argmax(1) != s.y
        again = torch.ones_like(wrong)
        if float(wrong.double().mean()) * (1 + self.gradients(logits.shape[1])) < 1:
            s.gap, s.gradient = self.plane(z, logits, s.y, s.target)
            again = wrong
        del logits  # and its graph, before the next is built
        self._accept(s, wrong)
        self._relinearise(model, s, again)

    def _evaluate_near(self, model: nn.Module, s: FabState) -> None:
        """The same, looking only at the rows within eps: the others cannot be broken by z."""
        wrong = ball.size(self.norm, s.z - s.x) > s.eps
        near = (~wrong).nonzero().squeeze(1)
        if len(near):
            with torch.no_grad():
                wrong[near] = model(s.z[near]).argmax(1) != s.y[near]
        self._accept(s, wrong)
        self._relinearise(model, s, torch.ones_like(wrong))

    def _relinearise(self, model: nn.Module, s: FabState, rows: Tensor) -> None:
        """The hyperplanes of these rows, unless no step is left to use them."""
        at = rows.nonzero().squeeze(1)
        if len(at) and bool((s.step < s.limit).any()):
            gap, gradient = self._linearise(model, s.z[at], s.y[at], s.target[at])
            s.gap = s.gap.index_copy(0, at, gap)
            s.gradient = s.gradient.index_copy(0, at, gradient)

    def _accept(self, s: FabState, wrong: Tensor) -> None:
        """Misclassified iterates: keep the distance, note those within eps, pull all back."""
        distance = ball.size(self.norm, s.z - s.x)
        s.distance = torch.where(wrong, torch.minimum(distance, s.distance), s.distance)
        s.note(s.z, wrong & (distance <= s.eps))
        s.z = torch.where(column(wrong, s.z), s.x + (s.z - s.x) * self.beta, s.z)

    def _linearise(
        self, model: nn.Module, z: Tensor, y: Tensor, t: Tensor
    ) -> tuple[Tensor, Tensor]:
        z = z.detach().requires_grad_()
        return self.plane(z, wide(model(z)), y, t)
