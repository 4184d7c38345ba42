"""A search on one chunk of images, as the official code runs it: `Search.search`, in steps.

Round by round over the examples that are left; between any two steps it can stop and go on. The
rows of a round are dealt to lanes, as in `_drive`, once all of them have drawn their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from spat.attacks._search import Batch, Found, Search
from spat.attacks._state import State
from spat.evaluation._part import FEWEST, Pause, below
from spat.fast import Crew, crew, one_by_one, split


class Chunk:
    """Its source of numbers is a generator, which every row draws from."""

    def __init__(self, attack: Search[Any], model: nn.Module, batch: Batch) -> None:
        assert isinstance(batch.source, torch.Generator)
        self.attack, self.model, self.batch, self.source = attack, model, batch, batch.source
        self.found = Found.before(batch)
        self.rounds, self.round = attack.rounds(batch.classes), 0
        self.by = split(model, len(batch), batch.x.device, smallest=FEWEST)
        self.together: Crew = one_by_one
        self.lanes: list[State] = []  # of the round; none before it is begun

    def run(self, pause: Pause) -> Found:
        with crew(self.by) as self.together:
            while self.round < self.rounds:
                if not self.lanes:
                    left = (~self.found.broken).nonzero().squeeze(1)
                    if not len(left):
                        break
                    self.lanes = self._begun(left)
                self._finish(pause)
                self.round, self.lanes = self.round + 1, []
        return self.found

    def _begun(self, left: Tensor) -> list[State]:
        rows: State = self.attack.begin(self.model, self.batch.take(left), self.round)
        rows.index = left
        return rows.divided(max(min(self.by.workers, len(left) // FEWEST), 1))

    def tensors(self) -> dict[str, Tensor]:
        whole = {"source": self.source.get_state(), "round": torch.tensor(self.round)}
        whole |= {f"found.{f.name}": getattr(self.found, f.name) for f in fields(self.found)}
        for k, lane in enumerate(self.lanes):
            whole |= {f"lane {k}.{name}": t for name, t in lane.tensors().items()}
        return whole

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        device = self.batch.x.device
        self.source.set_state(tensors["source"])
        self.round = int(tensors["round"])
        self.found = Found(**{k: t.to(device) for k, t in below("found", tensors).items()})
        self.lanes = []
        while lane := below(f"lane {len(self.lanes)}", tensors):
            self.lanes.append(self.attack.rows.restore(lane, device))

    def _finish(self, pause: Pause) -> None:
        """Advance until no row is active; rows leave as soon as they are done."""
        while True:
            for lane in self.lanes:
                done = ~lane.active
                if bool(done.any()):
                    self.found.collect(lane, done)
                    lane.keep(~done)
            going = [lane for lane in self.lanes if len(lane)]
            if not going:
                return
            self.together(self._steps, going)
            pause(self._share(going))

    def _steps(self, lane: State) -> None:
        for _ in range(self.attack.stride):
            self.attack.advance(self.model, lane)

    def _share(self, lanes: Sequence[State]) -> float:
        """Of the rounds; rows that left have done theirs."""
        left = sum(float((1 - rows.step / rows.limit.clamp(min=1)).sum()) for rows in lanes)
        return (self.round + 1 - left / len(self.batch)) / self.rounds
