"""Square: random search with a shrinking square and no gradient; it sees through masked ones.

Each example draws squares of its own, some queries ahead. Few of them are accepted, so the next
queries of a row are asked in one forward, as if each had been refused; the first that is accepted
makes those behind it void, and they are asked once more from the new image. A square that changes
nothing needs no forward. So the images are those of one query at a time, and forwards are large.
With `official`, the whole batch shares one square a query, in the places and from the numbers of
the official code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from spat import losses
from spat import rng as random
from spat.attacks import _square as moves
from spat.attacks._patience import look, no_looks, until_look
from spat.attacks._search import STREAMS, Batch, Search, stream, wide
from spat.attacks._state import State, column, on_cpu, shared
from spat.errors import UserError

AHEAD = 128  # queries that are planned at once
TOGETHER = {"cpu": 96, "cuda": 512}  # images that fill a forward
NUMBERS = 32 * 32 * 3  # of an image that this is meant for
FURTHEST = 12  # queries of a row in one forward: 2 to 6 % are accepted, more are void too often


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
    together: int = shared()  # images of a forward that may look ahead; fewer where memory ended
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
        self.together = min(self.together, other.together)


@dataclass(frozen=True, kw_only=True)
class Square(Search[SquareState]):
    """Square attack (Andriushchenko et al. 2020): queries only, no gradients.

    queries: squares tried; one forward each, or none where a square changes nothing
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
    in_lanes = False  # between forwards Python does much, which threads would do by turns
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
        if self.official:
            z = self._propose(state)
            margin, wrong = self._look(model, z, state.y)
            self._accept(state, z, margin, wrong, state.active.long())
        else:
            self._ask_ahead(model, state)
        if self.patience:
            state.history, state.limit = look(
                state.history, state.margin, state.step, state.limit, self.patience
            )

    def _ask_ahead(self, model: nn.Module, s: SquareState) -> None:
        """Some queries of every row, in one forward; in the same order as one after the other."""
        most = max(len(s), min(s.together, FURTHEST * len(s)))
        z = self._proposals(s, 3 * (most // len(s)) // 2)  # more, as some need no forward
        queries = torch.arange(z.shape[1], device=z.device)
        in_reach = queries < self._reach(s)[:, None]
        wanted = in_reach & ((z - s.z[:, None]).flatten(2).abs_().amax(2) > 0)
        asked = first_of_all(wanted, most)
        try:
            margin, wrong = self._answers(model, z, s.y, asked)
        except torch.OutOfMemoryError:
            if most == len(s):
                raise
            s.together = most // 2
            return
        better = (margin < s.margin[:, None]) | (margin <= 0)
        first, end = first_of_each(better), first_of_each(~in_reach | (wanted & ~asked))
        at = first.clamp(max=len(queries) - 1)
        at += len(queries) * torch.arange(len(s), device=z.device)
        z, margin, wrong = (t.flatten(0, 1).index_select(0, at) for t in (z, margin, wrong))
        self._accept(s, z, margin, wrong, torch.minimum(first + 1, end))

    def _accept(
        self, s: SquareState, z: Tensor, margin: Tensor, wrong: Tensor, queries: Tensor
    ) -> None:
        """Keep the images that lower the margin; queries: [n] how many led to them, 0 if none."""
        moving = queries > 0
        better = moving & ((margin < s.margin) | (margin <= 0))
        s.z = torch.where(column(better, z), z, s.z)
        s.margin = torch.where(better, margin, s.margin)
        s.step = s.step + queries
        self._close(s, wrong & moving)

    def _reach(self, s: SquareState) -> Tensor:
        """[n] queries that a row may go on: to its end, or to where it is looked at before."""
        left = until_look(s.step, s.limit) if self.patience else s.limit - s.step
        return torch.where(s.active, left, 0)

    def _answers(
        self, model: nn.Module, z: Tensor, y: Tensor, asked: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[n, k] of the images z [n, k, ...] that are asked; the others are no better than any."""
        margin = torch.full((asked.numel(),), torch.inf, dtype=z.dtype, device=z.device)
        wrong = torch.zeros_like(margin, dtype=torch.bool)
        at = asked.flatten().nonzero().squeeze(1)
        if len(at):
            z, y = z.flatten(0, 1).index_select(0, at), y.index_select(0, at // asked.shape[1])
            margin[at], wrong[at] = self._look(model, z, y)
        return margin.reshape(asked.shape), wrong.reshape(asked.shape)

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
            "together": together(batch.x),
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
        """The images of the next query in the official code."""
        if self.norm == "l2":
            return moves.transfer(s.z, s.x, s.eps, self._shared(s), self._plan(s.x).sides)
        plan = s.table[min(s.asked, len(s.table) - 1)].to(s.x)
        s.asked += 1
        return moves.recolour_one(s.z, s.x, s.eps, plan)

    def _proposals(self, s: SquareState, k: int) -> Tensor:
        """[n, k, c, h, w] the images of the next k queries of each row, all of them from z."""
        plans = self._own(s, k)
        if self.norm == "linf":
            return moves.recolour(s.z, s.x, s.eps, plans)
        z, x, eps = (t.repeat_interleave(k, 0) for t in (s.z, s.x, s.eps))
        moved = moves.transfer(z, x, eps, plans.flatten(0, 1), self._plan(s.x).sides)
        return moved.reshape(len(s), k, *s.x.shape[1:])

    def _shared(self, s: SquareState) -> Tensor:
        """[n, width] a plan in L2: the same squares for all rows, signs for each that moves."""
        source, plan = torch.Generator(), self._plan(s.x)
        source.set_state(s.generator)
        u = draw_shared(source, plan.numbers - plan.shape[0], plan.shape[0], s.active)
        s.generator = source.get_state()
        return plan.squares(s.step, u.to(s.x))

    def _own(self, s: SquareState, k: int) -> Tensor:
        """[n, k, width] the next plans of each row's stream."""
        if s.fresh < k:
            plan = self._plan(s.x)
            steps = s.step.cpu()[:, None] + torch.arange(AHEAD)
            each = random.PerExample(s.seed, (s.ids[:, None] * STREAMS + steps).flatten())
            u = each.uniform(plan.numbers).reshape(len(s), AHEAD, plan.numbers)
            s.ahead, s.ahead_from, s.fresh = plan.squares(steps, u).to(s.ahead), s.step, AHEAD
        s.fresh -= k
        rows, queries = (torch.arange(m, device=s.step.device) for m in (len(s), k))
        return s.ahead[rows[:, None], (s.step - s.ahead_from)[:, None] + queries]

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


def together(x: Tensor) -> int:
    """How many such images fill a forward."""
    return TOGETHER.get(x.device.type, 1) * NUMBERS // max(x[0].numel(), NUMBERS)


def first_of_all(wanted: Tensor, most: int) -> Tensor:
    """bool [n, k]: at most so many of those that are wanted, of every row the earliest ones."""
    ordered = wanted.T.flatten()
    return (ordered & (ordered.cumsum(0) <= most)).reshape(wanted.T.shape).T


def first_of_each(mask: Tensor) -> Tensor:
    """int64 [n]: the place of the first that is true in each row of a mask [n, k], or k."""
    return (mask.cumsum(1) == 0).sum(1)


def draw_shared(source: torch.Generator, common: int, each: int, rows: Tensor) -> Tensor:
    """[n, common + each] in the official order: numbers for all, then some for each of the rows."""
    u = torch.zeros(len(rows), common + each)
    u[:, :common] = torch.rand(common, generator=source)
    u[rows.cpu(), common:] = torch.rand(int(rows.sum()), each, generator=source)
    return u
