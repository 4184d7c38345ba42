"""A part of an evaluation: one attack of a stage on one net, that can stop and go on anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor, nn

from spat.attacks._base import Attack
from spat.evaluation._subject import Examples, Subject
from spat.evaluation._tally import Tally
from spat.rng import PerExample

FEWEST = 4  # rows that are worth a lane of their own: with fewer, threads share operations
Pause = Callable[[float], None]  # told the share of the part that is done; may save, may raise


@dataclass(frozen=True)
class Task:
    """What a part works on and enters its results in."""

    attack: Attack
    stage: int
    subject: Subject
    examples: Examples
    tally: Tally
    source: PerExample  # of all the examples

    def net(self, again: bool) -> nn.Module:
        """The copy; the second time, where the two disagreed, the model itself."""
        return self.subject.model if again else self.subject.copy


class Part(Protocol):
    is_again: bool

    def run(self, pause: Pause) -> None:
        """To the end; `pause` is called wherever it could be saved."""

    def again(self) -> Self | None:
        """The same on the model itself, where breaks of the copy were refuted."""

    def tensors(self) -> dict[str, Tensor]:
        """All that `restore` needs to go on exactly from here."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None: ...


def below(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a part, by the names it has for them."""
    start = f"{name}."
    return {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}
