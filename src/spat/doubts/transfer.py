"""Images crafted on another model break what the attack on the model itself does not."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from spat.attacks.pgd import PGD
from spat.doubts._base import Doubt, gap_level
from spat.doubts._student import student
from spat.doubts._subject import Subject
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Transfer(Doubt):
    """A transfer attack beats the white-box one.

    steps: of the attack on the other model, which climbs the margin
    lessons: updates in which a small network learns to imitate the model, where no source is given
    """

    steps: int = 20
    lessons: int = 150
    advice = (
        "gradients are masked: report the transfer attack, and look for the cause in the model."
    )

    def __call__(self, subject: Subject) -> Finding:
        source = subject.source or student(subject, self.lessons)
        attack = PGD(
            eps=subject.attack.eps, norm=subject.attack.norm, steps=self.steps, loss="margin"
        )
        held = subject.holds(subject.craft(attack, on=source))
        k = int((subject.held & ~held).sum())
        return self.finding(
            gap_level(k, subject.total),
            f"images crafted on {_told(subject.source)} break {k} of {subject.total} images that "
            "the attack on the model itself does not.",
            only_transfer=k / subject.total,
            held_transfer=int(held.sum()) / subject.total,
            held_attack=int(subject.held.sum()) / subject.total,
        )


def _told(source: nn.Module | None) -> str:
    return "the source model" if source is not None else "a small imitation of the model"
