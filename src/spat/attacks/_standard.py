"""AutoAttack's `standard` sequence with the verdicts of the official code, example by example.

Everything on which a verdict depends is kept: the order of the attacks, chunks of `batch_size` of
the examples that are left, attacked from their clean images, and the same seed for every chunk of
every attack. The numbers come from a generator that gives what the official code draws from the
global one. What cannot change a verdict is not done, above all: broken rows leave at once.
Square in L2 alone sums in another order, so there verdicts agree up to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spat.attacks._base import check_batch, first_logits
from spat.attacks._search import Batch, Found, Search, wide
from spat.attacks.apgd_ce import ApgdCE
from spat.attacks.apgd_t import ApgdT
from spat.attacks.fab_t import FabT
from spat.attacks.square import Square
from spat.modes import borrowed
from spat.threat import Norm

Named = Mapping[str, Search[Any]]
ROBUST, CLEAN = -1, 0  # in `broken_by`; the attacks count from 1


@dataclass
class Verdict:
    """One row per example; `names[broken_by]` says what broke it."""

    names: tuple[str, ...]
    x_adv: Tensor  # a misclassified image within the budget, or x
    broken_by: Tensor  # int64 [n]: -1 for a robust example, 0 if misclassified without attack
    step: Tensor  # int64 [n]: the step of the attack that broke it; -1 for a robust example
    round: Tensor  # int64 [n]: its restart or target; -1 for none

    @property
    def robust(self) -> Tensor:
        return self.broken_by == ROBUST


def standard(
    *, eps: float, norm: Norm = "linf", queries: int = 5000, official: bool = True
) -> dict[str, Search[Any]]:
    """The four attacks of `standard`, in order; `official` is Square's."""
    return {
        "apgd-ce": ApgdCE(eps=eps, norm=norm),
        "apgd-t": ApgdT(eps=eps, norm=norm),
        "fab-t": FabT(eps=eps, norm=norm),
        "square": Square(eps=eps, norm=norm, queries=queries, official=official),
    }


def standard_exact(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    norm: Norm = "linf",
    batch_size: int = 250,
    seed: int = 0,
    queries: int = 5000,
) -> Verdict:
    """The verdict of the official AutoAttack, `standard`, for each example."""
    attacks = standard(eps=eps, norm=norm, queries=queries)
    return run_exact(attacks, model, x, y, batch_size=batch_size, seed=seed)


def run_exact(
    attacks: Named, model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int, seed: int
) -> Verdict:
    """Attack after attack, each on the examples that are left."""
    check_batch(x, y)
    x, y = x.detach(), y.long()
    with borrowed(model, x.device):
        clean = [first_logits(model, x[at], y[at]) for at in _chunks(len(x), batch_size)]
        logits = wide(torch.cat(clean))
        verdict = _before(("clean", *attacks), x, logits.argmax(1) != y)
        for number, attack in enumerate(attacks.values(), start=1):
            left = verdict.robust.nonzero().squeeze(1)
            for at in _chunks(len(left), batch_size):
                rows = left[at]
                source = torch.Generator().manual_seed(seed)
                eps = attack.budget(x)[rows]
                batch = Batch(x[rows], y[rows], logits[rows], eps, rows, source)
                _enter(verdict, model, batch, attack.search(model, batch), number)
    return verdict


def _chunks(n: int, size: int) -> Iterable[slice]:
    return (slice(start, start + size) for start in range(0, n, size))


def _before(names: tuple[str, ...], x: Tensor, wrong: Tensor) -> Verdict:
    """What is known before any attack."""
    broken_by = torch.where(wrong, CLEAN, ROBUST)
    none = torch.full_like(broken_by, -1)
    return Verdict(names, x.clone(), broken_by, torch.where(wrong, 0, none), none)


def _enter(verdict: Verdict, model: nn.Module, batch: Batch, found: Found, number: int) -> None:
    """Enter what a forward of the returned images confirms."""
    claimed = found.broken.nonzero().squeeze(1)
    if not len(claimed):
        return
    with torch.no_grad():
        wrong = model(found.x_adv[claimed]).argmax(1) != batch.y[claimed]
    confirmed = claimed[wrong]
    rows = batch.index[confirmed]
    verdict.x_adv[rows] = found.x_adv[confirmed]
    verdict.broken_by[rows] = number
    verdict.step[rows] = found.step[confirmed]
    verdict.round[rows] = found.round[confirmed]
