"""A stage of AutoAttack with the verdicts of the official code, chunk by chunk.

They depend on the chunks, whose size is therefore never changed on the way.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spat.attacks._search import Search
from spat.attacks._standard import run_exact
from spat.errors import UserError
from spat.evaluation._part import Pause, Task

BATCH = 250  # the default of the official code


class Official:
    """The images that hold so far, in order, in chunks of the batch size."""

    is_again = False

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.todo = task.tally.left
        self.next = 0

    def run(self, pause: Pause) -> None:
        while self.next < len(self.todo):
            at = self.todo[self.next : self.next + self.task.subject.room.size]
            try:
                self._attack(at)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"the device has not enough memory for {len(at)} images at once; exact "
                    "verdicts depend on the batch size, so choose a smaller one."
                ) from None
            self.next += len(at)
            pause(self.next / len(self.todo))

    def again(self) -> None:
        """The model itself was attacked: there is nothing to refute."""

    def tensors(self) -> dict[str, Tensor]:
        return {"todo": self.todo, "next": torch.tensor(self.next)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.todo, self.next = tensors["todo"], int(tensors["next"])

    def _attack(self, at: Tensor) -> None:
        task, e, subject = self.task, self.task.examples, self.task.subject
        assert isinstance(task.attack, Search)
        x, y = e.x[at.to(e.x.device)].detach().to(subject.device), e.y[at].to(subject.device)
        attacks = {"": task.attack}
        found = run_exact(attacks, subject.model, x, y, batch_size=len(at), seed=self.seed)
        eps = task.attack.budget(x)
        x_adv, predicted = subject.judge(task.attack.norm, found.x_adv, x, eps)
        wrong = (~found.robust).cpu() & (predicted != e.y[at])
        step, round = found.step.cpu()[wrong], found.round.cpu()[wrong]
        task.tally.enter(at[wrong], x_adv.cpu()[wrong], predicted[wrong], step, round, task.stage)
