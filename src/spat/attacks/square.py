"""Square: random search with a shrinking square and no gradient; it sees through masked ones.

Each example draws squares of its own, some queries ahead. With `official`, the whole batch shares
one square a query, in the places and from the numbers of the official code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from spat import losses
from spat import rng as random
from spat.attacks import _square as moves
from spat.attacks._patience import look, no_looks
from spat.attacks._search import STREAMS, Batch, Search, stream, wide
from spat.attacks._state import State, column, on_cpu, shared
from spat.errors import UserError

AHEAD = 64  # queries that are planned at once


@dataclass(kw_only=True)
class SquareState(State):
    """z: the best image so far, and where the next squares come from."""

    z: Tensor
    margin: Tensor  # [n] of z
    history: Tensor  # [n, looks] see `_patience`
    ids: Tensor = on_cpu()  # int64 [n]: the row's own stream
    ahead: Tensor  # [n, AHEAD, width] plans of that stream
    ahead_from: Tensor  # int64 [n]: the query that `ahead` begins with
    seed: int = shared()  # of the streams
    fresh: int = shared()  # queries for which `ahead` still serves all rows
    table: Tensor = on_cpu(
        shared=True
    )  # [queries, width] plans of the squares that all rows share in Linf
    asked: int = shared()  # queries answered from the table
    generator: Tensor = on_cpu(shared=True)  # the state of the one that the rows share in L2

    @property
    def best(self) -> Tensor:
        return self.z

    @property
    def score(self) -> Tensor:
        return -self.margin

    def divided(self, parts: int) -> list[Self]:
        return super().divided(1 if len(self.generator) else parts)

    def append(self, other: Self) -> None:
        if len(self.generator) or len(self.table) or self.seed != other.seed:
            raise ValueError("only rows with squares of their own, of one seed, can be joined.")
        super().append(other)
        self.fresh = min(self.fresh, other.fresh)


@dataclass(frozen=True, kw_only=True)
class Square(Search[SquareState]):
    """Square attack (Andriushchenko et al. 2020): queries only, no gradients.

    queries: squares tried; one forward each
    share: part of the image that the first squares cover
    restarts: runs from new starts, for the examples not yet broken
    patience: give up rows whose gain so far, times this, would not do; 0 gives up none
    official: one square a query for the whole batch, in the half-open range of the official code
    """

    queries: int = 5000
    share: float = 0.8
    restarts: int = 1
    patience: float = 0.0
    official: bool = False

    stride = 16
    rows = SquareState

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.queries < STREAMS:
            raise UserError(f"queries must lie in [0, {STREAMS - 1}], got {self.queries}.")
        if not 0 < self.share <= 1:
            raise UserError(f"share must lie in (0, 1], got {self.share:g}.")
        if self.restarts < 1:
            raise UserError(f"restarts must be 1 or more, got {self.restarts}.")
        if not self.patience >= 0:
            raise UserError(f"patience must be 0 or more, got {self.patience:g}.")

    def rounds(self, classes: int) -> int:
        return self.restarts

    @torch.no_grad()
    def begin(self, model: nn.Module, batch: Batch, round: int | Tensor = 0) -> SquareState:
        if batch.x.ndim != 4:
            raise UserError(
                f"square needs images [n, channels, h, w], got shape {tuple(batch.x.shape)}."
            )
        rounds = batch.rounds(round)
        source = self._source(batch, rounds)
        z = self._start(batch, random.fork(source, "start"))
        margin, wrong = self._look(model, z, batch.y)
        state = SquareState(
            **self.fields(batch, rounds, self.queries),
            **self._squares(batch, random.fork(source, "squares")),
            z=z,
            margin=margin,
            history=no_looks(batch.eps),
        )
        self._close(state, wrong)
        return state

    @torch.no_grad()
    def advance(self, model: nn.Module, state: SquareState) -> None:
        moving = state.active
        z = self._propose(state)
        margin, wrong = self._look(model, z, state.y)
        better = moving & ((margin < state.margin) | (margin <= 0))
        state.z = torch.where(column(better, z), z, state.z)
        state.margin = torch.where(better, margin, state.margin)
        state.step = state.step + moving
        self._close(state, wrong & moving)
        if self.patience:
            state.history, state.limit = look(
                state.history, state.margin, state.step, state.limit, self.patience
            )

    def _source(self, batch: Batch, rounds: Tensor) -> random.Source:
        if not self.official and isinstance(batch.source, torch.Generator):
            seed = int(torch.randint(2**62, (1,), generator=batch.source))
            batch = replace(batch, source=random.PerExample(seed, batch.index.cpu()))
        if self.official and not isinstance(batch.source, torch.Generator):
            raise UserError("square with official=True needs a torch.Generator or a seed as rng.")
        return stream(batch.source, rounds)

    def _start(self, batch: Batch, source: random.Source) -> Tensor:
        n, c, h, w = batch.x.shape
        if self.norm == "linf":
            u = random.uniform(source, batch.x.new_empty(n, c, 1, w))
            return moves.stripes(batch.x, batch.eps, u)
        tiles = len(moves.tiles(h, w)[1])
        if isinstance(source, random.PerExample):
            u = random.uniform(source, batch.x.new_empty(n, tiles, 1 + c))
        else:
            everyone = torch.ones(n, dtype=torch.bool)
            drawn = [draw_shared(source, 1, c, everyone) for _ in range(tiles)]
            u = torch.stack(drawn, 1).to(batch.x)
        return moves.mosaic(batch.x, batch.eps, u)

    def _plan(self, x: Tensor) -> moves.Plan:
        _, c, h, w = x.shape
        return moves.Plan(self.norm, self.share, (c, h, w), half_open=self.official)

    def _squares(self, batch: Batch, source: random.Source) -> dict[str, Any]:
        """The fields that say where the squares come from."""
        plan, none = self._plan(batch.x), torch.empty(0)
        squares: dict[str, Any] = {
            "ids": torch.zeros(len(batch), dtype=torch.int64),
            "ahead": batch.x.new_zeros(len(batch), AHEAD, plan.width),
            "ahead_from": torch.zeros_like(batch.index),
            **dict.fromkeys(("seed", "fresh", "asked"), 0),
            **dict.fromkeys(("table", "generator"), none),
        }
        if isinstance(source, random.PerExample):
            squares |= {"ids": source.ids, "seed": source.seed}
        elif self.norm == "linf":  # on the CPU, where the corners are read
            u = random.uniform(source, torch.empty(self.queries, plan.numbers))
            squares["table"] = plan.squares(torch.arange(self.queries), u)
        else:
            squares["generator"] = source.get_state()
            torch.rand(1, generator=source)  # so that a restart draws other squares
        return squares

    def _propose(self, s: SquareState) -> Tensor:
        if self.official and self.norm == "linf":
            plan = s.table[min(s.asked, len(s.table) - 1)].to(s.x)
            s.asked += 1
            return moves.recolour_one(s.z, s.x, s.eps, plan)
        plans = self._shared(s) if self.official else self._own(s)
        if self.norm == "linf":
            return moves.recolour(s.z, s.x, s.eps, plans)
        return moves.transfer(s.z, s.x, s.eps, plans, self._plan(s.x).sides)

    def _shared(self, s: SquareState) -> Tensor:
        """[n, width] a plan in L2: the same squares for all rows, signs for each that moves."""
        source, plan = torch.Generator(), self._plan(s.x)
        source.set_state(s.generator)
        u = draw_shared(source, plan.numbers - plan.shape[0], plan.shape[0], s.active)
        s.generator = source.get_state()
        return plan.squares(s.step, u.to(s.x))

    def _own(self, s: SquareState) -> Tensor:
        """[n, width] the next plan of each row's stream."""
        if not s.fresh:
            plan = self._plan(s.x)
            steps = s.step.cpu()[:, None] + torch.arange(AHEAD)
            each = random.PerExample(s.seed, (s.ids[:, None] * STREAMS + steps).flatten())
            u = each.uniform(plan.numbers).reshape(len(s), AHEAD, plan.numbers)
            s.ahead, s.ahead_from, s.fresh = plan.squares(steps, u).to(s.ahead), s.step, AHEAD
        s.fresh -= 1
        rows = torch.arange(len(s), device=s.step.device)
        return s.ahead[rows, s.step - s.ahead_from]

    def _look(self, model: nn.Module, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The margin, which a query must lower, and whether the image is misclassified."""
        logits = wide(model(z))
        return losses.margin(logits, y), logits.argmax(1) != y

    def _close(self, s: SquareState, wrong: Tensor) -> None:
        """Note the rows that this query broke.

        In the official code a tie ends a row too, though its label may still win it.
        """
        s.x_found = s.z  # a broken row does not change any more
        s.step_found = torch.where(wrong & ~s.broken, s.step, s.step_found)
        s.broken = s.broken | wrong
        if self.official:
            s.limit = torch.where(s.margin <= 0, s.step, s.limit)


def draw_shared(source: torch.Generator, common: int, each: int, rows: Tensor) -> Tensor:
    """[n, common + each] in the official order: numbers for all, then some for each of the rows."""
    u = torch.zeros(len(rows), common + each)
    u[:, :common] = torch.rand(common, generator=source)
    u[rows.cpu(), common:] = torch.rand(int(rows.sum()), each, generator=source)
    return u
