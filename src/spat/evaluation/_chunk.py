"""A search on one chunk of images, as the official code runs it: `Search.search`, in steps.

Round by round over the examples that are left; between any two steps it can stop and go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from spat.attacks._search import Batch, Found, Search
from spat.attacks._state import State
from spat.evaluation._part import Pause, below


class Chunk:
    """Its source of numbers is a generator, which every row draws from."""

    def __init__(self, attack: Search[Any], model: nn.Module, batch: Batch) -> None:
        assert isinstance(batch.source, torch.Generator)
        self.attack, self.model, self.batch, self.source = attack, model, batch, batch.source
        self.found = Found.before(batch)
        self.rounds, self.round = attack.rounds(batch.classes), 0
        self.rows: State | None = None  # of the round; None before it is begun

    def run(self, pause: Pause) -> Found:
        while self.round < self.rounds:
            if self.rows is None:
                left = (~self.found.broken).nonzero().squeeze(1)
                if not len(left):
                    break
                self.rows = self.attack.begin(self.model, self.batch.take(left), self.round)
                self.rows.index = left
            self._finish(self.rows, pause)
            self.round, self.rows = self.round + 1, None
        return self.found

    def tensors(self) -> dict[str, Tensor]:
        whole = {"source": self.source.get_state(), "round": torch.tensor(self.round)}
        whole |= {f"found.{f.name}": getattr(self.found, f.name) for f in fields(self.found)}
        rows = {} if self.rows is None else self.rows.tensors()
        return whole | {f"rows.{name}": t for name, t in rows.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        device = self.batch.x.device
        self.source.set_state(tensors["source"])
        self.round = int(tensors["round"])
        self.found = Found(**{k: t.to(device) for k, t in below("found", tensors).items()})
        rows = below("rows", tensors)
        self.rows = self.attack.rows.restore(rows, device) if rows else None

    def _finish(self, rows: State, pause: Pause) -> None:
        """Advance until no row is active; rows leave as soon as they are done."""
        while True:
            done = ~rows.active
            if bool(done.any()):
                self.found.collect(rows, done)
                rows.keep(~done)
            if not len(rows):
                return
            for _ in range(self.attack.stride):
                self.attack.advance(self.model, rows)
            pause(self._share(rows))

    def _share(self, rows: State) -> float:
        """Of the rounds; rows that left have done theirs."""
        left = float((1 - rows.step / rows.limit.clamp(min=1)).sum()) / len(self.batch)
        return (self.round + 1 - left) / self.rounds
