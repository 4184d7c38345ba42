"""An attack without rounds (FGSM, PGD, MIM) on many images, batch by batch.

Its verdict is that of its last image, as everywhere in the field; the worst of all iterates would
be another, stronger attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Self

import torch
from torch import Tensor

from spat.evaluation._part import Pause, Task


class Batches:
    """The images that hold so far, in order."""

    def __init__(self, task: Task, todo: Tensor | None = None, *, again: bool = False) -> None:
        self.task, self.net, self.is_again = task, task.net(again), again
        self.todo = task.tally.left if todo is None else todo
        self.refuted = torch.zeros(len(task.examples), dtype=torch.bool)
        self.next = 0

    def run(self, pause: Pause) -> None:
        room = self.task.subject.room
        while self.next < len(self.todo):
            at = self.todo[self.next : self.next + room.size]
            if room.fits(partial(self._attack, at), len(at)):
                self.next += len(at)
                pause(self.next / len(self.todo))

    def again(self) -> Self | None:
        todo = self.refuted.nonzero().squeeze(1)
        if self.is_again or not len(todo):
            return None
        return type(self)(self.task, todo, again=True)

    def tensors(self) -> dict[str, Tensor]:
        return {"todo": self.todo, "refuted": self.refuted, "next": torch.tensor(self.next)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.todo, self.refuted = tensors["todo"], tensors["refuted"]
        self.next = int(tensors["next"])

    def _attack(self, at: Tensor) -> None:
        task, e, device = self.task, self.task.examples, self.task.subject.device
        x, y = e.x[at.to(e.x.device)].detach().to(device), e.y[at].to(device)
        x_adv = task.attack(self.net, x, y, rng=task.source[at])
        eps = torch.full((len(at),), float(task.attack.eps), dtype=x.dtype, device=device)
        x_adv, predicted = task.subject.judge(task.attack.norm, x_adv, x, eps)
        wrong, none = predicted != e.y[at], torch.full_like(at, -1)
        claimed = self._claimed(x_adv[(~wrong).to(device)], y[(~wrong).to(device)])
        rows, first, x_adv = at[wrong], torch.zeros_like(at), x_adv.cpu()
        task.tally.enter(rows, x_adv[wrong], predicted[wrong], none[wrong], first[wrong],
                         task.stage)  # fmt: skip
        task.tally.try_on(at[~wrong], x_adv[~wrong], first[~wrong], first[~wrong])
        self.refuted[at[~wrong][claimed]] = True

    def _claimed(self, x_adv: Tensor, y: Tensor) -> Tensor:
        """bool [k] on the CPU: what the attacked copy misclassifies."""
        if self.is_again or not self.task.subject.is_hastened or not len(y):
            return torch.zeros(len(y), dtype=torch.bool)
        with torch.no_grad():
            z: Tensor = self.net(x_adv)
        return (z.argmax(1) != y).cpu()
