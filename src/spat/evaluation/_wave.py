"""Every attack on one wave of images, the only one unless they are to be sampled."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spat.errors import UserError
from spat.evaluation._attempt import Attempt, Bench
from spat.evaluation._store import Saved
from spat.evaluation._subject import Examples
from spat.evaluation._tally import Tally
from spat.records import Attacked, Outcomes

AGREE = 1e-2  # of logits, relative to the largest: other machines and batches round otherwise


class Wave:
    """Some images, or all.

    at: places in x of its images; None for all, in the order they have
    number: counted from 0
    """

    def __init__(self, bench: Bench, at: Tensor | None, number: int) -> None:
        self.bench, self.number, self.is_part = bench, number, at is not None
        self.at = torch.arange(len(bench.x)) if at is None else at
        self.first = bench.store.find((number, 0)) if bench.planned else None
        self.examples = self._examples()

    def run(self) -> Outcomes:
        """Rows of these images; notes are the whole evaluation's."""
        columns: dict[str, Attacked] = {}
        found: list[tuple[str, Tally]] = []
        for number, planned in enumerate(self.bench.planned):
            attempt = self._attempt(number)
            columns[planned.label] = attempt.run()
            found.append((planned.label, attempt.course.tally))
            if not self.is_part:  # of a wave that may yet be cut off nothing is handed over
                self._hand_over(found)
        self._hand_over(found)
        e = self.examples
        ids, labels, clean = (t.numpy() for t in (e.ids, e.y, e.predicted))
        return Outcomes(ids, labels, clean, columns, self.bench.eps, self.bench.norm)

    def _attempt(self, number: int) -> Attempt:
        place = (self.number, number)
        saved = self.bench.store.find(place) if number else self.first
        self.first = None  # it holds images, which may be many
        return Attempt(self.bench, self.examples, place, saved, is_part=self.is_part)

    def _hand_over(self, found: list[tuple[str, Tally]]) -> None:
        """To `keep`, with places in the whole x."""
        for label, tally in found:
            rows = tally.todo.nonzero().squeeze(1)
            self.bench.keep(label, self.at[rows], tally.x_adv[rows], tally.predicted[rows])
        found.clear()

    def _examples(self) -> Examples:
        bench = self.bench
        x, y, ids = bench.x, bench.y, bench.ids
        if self.is_part:
            x, y, ids = (t[self.at.to(t.device)] for t in (x, y, ids))
        examples = bench.subject.examples(x, y, ids)
        if self.first is None:
            return examples
        self._check(examples, self.first)
        return replace(examples, clean=self.first.tensors["clean"])

    def _check(self, examples: Examples, saved: Saved) -> None:
        """Weights do not tell everything of a model: its code may have changed."""
        before, now = saved.tensors["clean"], examples.clean
        if before.shape == now.shape and _differ(before, now) <= AGREE:
            return
        again = self.bench.subject.examples(examples.x, examples.y, examples.ids).clean
        if torch.equal(again, now):  # else it is one that answers at random
            raise UserError(
                "the state is of another model: it has the same weights, and says other things of "
                "the images; go on with that model, or begin anew."
            )


def _differ(before: Tensor, now: Tensor) -> float:
    return float((before - now).abs().max() / before.abs().max().clamp(min=1e-12))
