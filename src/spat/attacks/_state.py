"""Where a search stands: rows of tensors, so that it can shrink, be refilled, saved and resumed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor


def shared() -> Any:
    """A field that all rows have in common: not selected when rows leave."""
    return field(metadata={"shared": True})


def on_cpu(*, shared: bool = False) -> Any:
    """A field that stays on the CPU, where random numbers are drawn."""
    return field(metadata={"shared": shared, "on_cpu": True})


@dataclass(kw_only=True)
class State:
    """One row per (example, round of the attack: a restart or a target class).

    Counters and schedules are per row too, so rows of any age can share a batch.
    A row is active until it is broken or has taken all its steps; whoever drives the search drops
    the others with `keep`, and may fill their places with `append`. A state is whole between two
    steps: that is when to save it.
    """

    index: Tensor  # int64 [n]: the example of the caller's batch that the row attacks
    round: Tensor  # int64 [n]: which restart or target
    x: Tensor  # the clean images
    y: Tensor  # int64 [n]
    eps: Tensor  # [n], x's dtype
    step: Tensor  # int64 [n]: steps taken
    limit: Tensor  # int64 [n]: steps to take
    broken: Tensor  # bool [n]: a misclassified image within the budget was met
    x_found: Tensor  # the latest such image; x before there is one
    step_found: Tensor  # int64 [n]: the step that met it first; -1 before

    def __len__(self) -> int:
        return len(self.index)

    @property
    def active(self) -> Tensor:
        """bool [n]: rows that are neither broken nor at their last step."""
        return ~self.broken & (self.step < self.limit)

    @property
    def best(self) -> Tensor:
        """What the search has to show for a row that it did not break."""
        return self.x

    @property
    def score(self) -> Tensor:
        """[n] how bad `best` is for the model: comparable between the rounds of an example."""
        return torch.full_like(self.eps, -torch.inf)

    def note(self, z: Tensor, wrong: Tensor) -> None:
        """Remember iterates that are misclassified within the budget."""
        self.x_found = torch.where(column(wrong, z), z, self.x_found)
        self.step_found = torch.where(wrong & ~self.broken, self.step, self.step_found)
        self.broken = self.broken | wrong

    def keep(self, rows: Tensor) -> None:
        """Only these rows (a mask or indices) remain."""
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        for name in self._rows():
            value = getattr(self, name)
            setattr(self, name, value[rows.to(value.device)])

    def divided(self, parts: int) -> list[Self]:
        """The same rows in so many states, as equal as can be."""
        everyone = torch.arange(len(self))
        states = [copy.copy(self) for _ in range(parts)]
        for k, state in enumerate(states):
            state.keep(everyone[k::parts])
        return states

    def append(self, other: Self) -> None:
        """The rows of another state of the same attack come after these."""
        for name in self._rows():
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    def tensors(self) -> dict[str, Tensor]:
        """A copy of all there is to know: given to `restore`, it goes on exactly from here."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: torch.as_tensor(value).clone() for name, value in values.items()}

    @classmethod
    def restore(
        cls, tensors: Mapping[str, Tensor], device: torch.device | str | None = None
    ) -> Self:
        """device: of the rows; by default where their tensors are."""
        values: dict[str, Any] = {}
        for f in fields(cls):
            value = tensors[f.name].clone()
            moved = value if f.metadata.get("on_cpu") else value.to(device)
            values[f.name] = int(value) if f.type == "int" else moved
        return cls(**values)

    def _rows(self) -> Iterator[str]:
        return (f.name for f in fields(self) if not f.metadata.get("shared"))


def column(v: Tensor, like: Tensor) -> Tensor:
    """[n] shaped to broadcast over images."""
    return v.reshape(-1, *[1] * (like.ndim - 1))
