"""A stage of AutoAttack with the verdicts of the official code, chunk by chunk.

They depend on the chunks, whose size is therefore never changed on the way. Every chunk draws the
same numbers. `attacks/_standard.py` is the same without a way to stop.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spat.attacks._base import first_logits
from spat.attacks._search import Batch, Found, Search, wide
from spat.attacks._state import column
from spat.errors import UserError
from spat.evaluation._chunk import Chunk
from spat.evaluation._part import Pause, Task, below

BATCH = 250  # the default of the official code


class Official:
    """The images that hold so far, in order, in chunks of the batch size."""

    is_again = False

    def __init__(self, task: Task, seed: int) -> None:
        assert isinstance(task.attack, Search)
        self.task, self.attack, self.seed = task, task.attack, seed
        self.todo = task.tally.left
        self.next = 0
        self.chunk: Chunk | None = None
        self.begun: Mapping[str, Tensor] = {}  # where the chunk stood that is to be gone on with

    def run(self, pause: Pause) -> None:
        while self.next < len(self.todo):
            at = self.todo[self.next : self.next + self.task.subject.room.size]
            try:
                self._attack(at, pause)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"the device has not enough memory for {len(at)} images at once; exact "
                    "verdicts depend on the batch size, so choose a smaller one."
                ) from None
            self.next, self.chunk = self.next + len(at), None
            pause(self.next / len(self.todo))

    def again(self) -> None:
        """The model itself was attacked: there is nothing to refute."""

    def tensors(self) -> dict[str, Tensor]:
        chunk = {} if self.chunk is None else self.chunk.tensors()
        whole = {"todo": self.todo, "next": torch.tensor(self.next)}
        return whole | {f"chunk.{name}": t for name, t in chunk.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.todo, self.next = tensors["todo"], int(tensors["next"])
        self.begun = below("chunk", tensors)

    def _attack(self, at: Tensor, pause: Pause) -> None:
        task, batch = self.task, self._batch(at)
        self.chunk = Chunk(self.attack, task.subject.copy, batch)
        if self.begun:
            self.chunk.restore(self.begun)
            self.begun = {}
        begun, share = self.next / len(self.todo), len(at) / len(self.todo)
        found = self.chunk.run(lambda done: pause(begun + share * done))
        claimed = self._confirmed(found, batch)
        shown = torch.where(column(claimed, batch.x), found.x_adv, batch.x)
        x_adv, predicted = task.subject.judge(self.attack.norm, shown, batch.x, batch.eps)
        wrong = claimed.cpu() & (predicted != task.examples.y[at])
        step, round = found.step.cpu()[wrong], found.round.cpu()[wrong]
        task.tally.enter(at[wrong], x_adv.cpu()[wrong], predicted[wrong], step, round, task.stage)

    def _batch(self, at: Tensor) -> Batch:
        e, subject = self.task.examples, self.task.subject
        x, y = e.x[at.to(e.x.device)].detach().to(subject.device), e.y[at].to(subject.device)
        clean = wide(first_logits(subject.model, x, y))
        source = torch.Generator().manual_seed(self.seed)
        rows = torch.arange(len(at), device=x.device)
        return Batch(x, y, clean, self.attack.budget(x), rows, source)

    def _confirmed(self, found: Found, batch: Batch) -> Tensor:
        """bool [n]: the official code believes what a forward of its own confirms."""
        rows = found.broken.nonzero().squeeze(1)
        confirmed = torch.zeros_like(found.broken)
        if len(rows):
            with torch.no_grad():
                z: Tensor = self.task.subject.model(found.x_adv[rows])
            confirmed[rows] = z.argmax(1) != batch.y[rows]
        return confirmed
