"""An attack on a set of images from its first stage to its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from spat.attacks._base import Attack
from spat.attacks._search import Search
from spat.attacks.aa import AA
from spat.evaluation._batches import Batches
from spat.evaluation._drive import Drive
from spat.evaluation._official import Official
from spat.evaluation._part import Part, Task, below
from spat.evaluation._subject import Examples, Subject
from spat.evaluation._tally import Tally
from spat.evaluation.plan import Planned
from spat.records import BETWEEN, Attacked
from spat.rng import PerExample, derive

ALMOST = 0.999
Progress = Callable[[str, float, Tally], None]  # the attack or stage, its share done, the results


class Course:
    """Stage after stage, each on what the ones before left, and each again where it must."""

    def __init__(
        self, planned: Planned, subject: Subject, examples: Examples, seed: int, *, exact: bool
    ) -> None:
        self.planned, self.subject, self.examples = planned, subject, examples
        self.seed, self.source = seed, PerExample(derive(seed, planned.label), examples.ids)
        self.stages = stages_of(planned.attack, official=exact)
        self.is_official = exact and len(self.stages) > 1
        self.tally = Tally.before(examples)
        self.stage = 0
        self.part: Part | None = None

    def run(self, progress: Progress) -> Attacked:
        """To the end, from where it stands; `progress` may save it, or end it by raising."""
        while not self.is_over:
            name = self.label
            self.part = self.part or self._first_part()
            self.part.run(partial(self._tell, progress, name))
            self.part = self.part.again()
            if self.part is None:
                self.stage += 1  # first, for `progress` may save it
                progress(name, 1.0, self.tally)
        names = tuple(self.stages) if len(self.stages) > 1 else ()
        return self.tally.attacked(self.examples.x, self.planned.attack.norm, names)

    def _tell(self, progress: Progress, name: str, share: float) -> None:
        """Before a stage is known to need no second part it is not complete."""
        progress(name, min(share, ALMOST), self.tally)

    @property
    def is_over(self) -> bool:
        return self.stage == len(self.stages)

    @property
    def label(self) -> str:
        """Of the stage; of the last one once all are over."""
        stage = list(self.stages)[min(self.stage, len(self.stages) - 1)]
        return self.planned.label + (BETWEEN + stage if stage else "")

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Named tensors and what else `restore` needs."""
        whole = {f"tally.{name}": t for name, t in self.tally.tensors().items()}
        if self.part is not None:
            whole |= {f"part.{name}": t for name, t in self.part.tensors().items()}
        again = self.part is not None and self.part.is_again
        return whole, {"stage": self.stage, "again": again, "begun": self.part is not None}

    def restore(self, tensors: Mapping[str, Tensor], where: Mapping[str, Any]) -> None:
        self.tally = Tally.restore(below("tally", tensors))
        self.stage = where["stage"]
        if where["begun"]:
            self.part = self._part(again=where["again"])
            self.part.restore(below("part", tensors))

    def _first_part(self) -> Part:
        self.tally.open_stage()
        return self._part(again=False)

    def _part(self, *, again: bool) -> Part:
        name, attack = list(self.stages.items())[self.stage]
        source = self.source.fork(name) if name else self.source
        task = Task(attack, self.stage, self.subject, self.examples, self.tally, source)
        if self.is_official:
            return Official(task, self.seed)
        kind = Drive if isinstance(attack, Search) else Batches
        return kind(task, again=again)


def stages_of(attack: Attack, *, official: bool) -> dict[str, Attack]:
    """The attacks it consists of; of most it is itself alone, without a name."""
    if not isinstance(attack, AA):
        return {"": attack}
    return dict(attack.stages(official=official))
