"""What an attack has done so far, a row per image, on the CPU: to be counted, saved and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from spat.evaluation._subject import Examples
from spat.records import Attacked, no_stage
from spat.threat import threat

NEVER = 1 << 30  # the round that broke an image which none has broken


@dataclass
class Tally:
    """Images are broken by the first round that can break them, in whatever order rounds end.

    So the result of an image does not depend on which of its rounds shared a batch.
    """

    x_adv: Tensor  # a misclassified image where there is one, else the best attempt
    predicted: Tensor  # int64 [n] of x_adv if that is misclassified, else of x
    todo: Tensor  # bool [n]: right without an attack
    broken: Tensor  # bool [n]
    step: Tensor  # int64 [n]: the step that broke it, -1 if none did or none tells
    round: Tensor  # int64 [n]: the round that broke it, NEVER if none did
    stage: Tensor  # int64 [n]: the stage that broke it, -1 if none did
    score: Tensor  # float32 [n] of the best attempt in this stage
    attempt: Tensor  # int64 [n]: the round it was made in

    @classmethod
    def before(cls, examples: Examples) -> Self:
        none = torch.full((len(examples),), -1)
        return cls(
            x_adv=examples.x.detach().cpu().clone(),
            predicted=examples.predicted.clone(),
            todo=examples.predicted == examples.y,
            broken=torch.zeros(len(examples), dtype=torch.bool),
            step=none,
            round=torch.full_like(none, NEVER),
            stage=none.clone(),
            score=torch.full((len(examples),), -torch.inf),
            attempt=torch.full_like(none, NEVER),
        )

    @property
    def left(self) -> Tensor:
        """int64 [k]: the images that hold so far."""
        return (self.todo & ~self.broken).nonzero().squeeze(1)

    def open_stage(self) -> None:
        """Attempts of another attack are told by other scores."""
        self.score = torch.full_like(self.score, -torch.inf)
        self.attempt = torch.full_like(self.attempt, NEVER)

    def enter(
        self, at: Tensor, x_adv: Tensor, predicted: Tensor, step: Tensor, round: Tensor, stage: int
    ) -> None:
        """Misclassified images, at most one of an example in a round."""
        for row in range(len(at)):  # few, and two rounds of one example may come at once
            i = int(at[row])
            if int(round[row]) >= int(self.round[i]):
                continue
            self.x_adv[i], self.predicted[i] = x_adv[row], predicted[row]
            self.step[i], self.round[i], self.stage[i] = step[row], round[row], stage
            self.broken[i] = True

    def try_on(self, at: Tensor, x_adv: Tensor, score: Tensor, round: Tensor) -> None:
        """What rounds have to show that broke nothing; of equals that of the first round."""
        for row in range(len(at)):
            i = int(at[row])
            new, old = float(score[row]), float(self.score[i])
            earlier = int(round[row]) < int(self.attempt[i])
            if self.broken[i] or not (new > old or (new == old > -torch.inf and earlier)):
                continue
            self.x_adv[i], self.score[i], self.attempt[i] = x_adv[row], score[row], round[row]

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(**{f.name: tensors[f.name] for f in fields(cls)})

    def attacked(self, x: Tensor, norm: str, stages: tuple[str, ...] = ()) -> Attacked:
        """The column of Outcomes; stages only of an attack that has several."""
        distance = threat(norm, 0.0).distance(self.x_adv, x.detach().cpu()).float()
        return Attacked(
            predicted=self.predicted.numpy(),
            broken=self.broken.numpy(),
            distance=distance.numpy(),
            step=self.step.numpy(),
            stages=stages,
            stage=self.stage.numpy() if stages else no_stage(),
        )
