"""Everything that decides the next step, as one value that a checkpoint holds.

Random numbers are not in it: each is a function of the seed and the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spat.errors import UserError
from spat.models import cosine_heads
from spat.training.symptoms import Watch


@dataclass
class Counters:
    """What a run knows of itself besides tensors.

    sums, seen: of the current epoch. watch: what the guard remembers
    """

    step: int = 0
    best: float = -1.0
    best_epoch: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    seen: int = 0
    watch: Watch = field(default_factory=Watch)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Counters:
        return cls(**{**saved, "watch": Watch.from_json(saved["watch"])})


@dataclass
class State:
    """Weights, the optimiser's buffers, the average if any, the best, what is carried, counters.

    good: what `go_back` leads to: weights, buffers and average, by the names of `tensors`
    """

    model: nn.Module
    optimiser: torch.optim.SGD
    averaged: dict[str, Tensor] | None = None
    best: dict[str, Tensor] = field(default_factory=dict)
    carried: Tensor | None = None
    good: dict[str, Tensor] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)

    def carry(self, delta: Tensor | None) -> None:
        """Keep a perturbation for the next batch; one of fewer images keeps the others' rows."""
        held = None if delta is None else self._carried_like(delta)
        if delta is None or held is None or len(delta) >= len(held):
            self.carried = delta
        else:
            self.carried = torch.cat([delta, held[len(delta) :]])

    def carried_for(self, x: Tensor) -> Tensor | None:
        """The kept perturbation for this batch: rows it does not have yet are zero."""
        held = self._carried_like(x)
        if held is None or len(held) >= len(x):
            return None if held is None else held[: len(x)]
        return torch.cat([held, torch.zeros_like(x[len(held) :])])

    def _carried_like(self, x: Tensor) -> Tensor | None:
        """What is kept, unless images now have another size: then it begins anew."""
        held = self.carried
        return held if held is not None and held.shape[1:] == x.shape[1:] else None

    def judged(self) -> dict[str, Tensor]:
        """The weights that are evaluated and handed over: the average where there is one."""
        if self.averaged is None:
            return self.model.state_dict()
        state = copied(self.averaged)
        unit_rows_(state, self.model)
        return state

    def average(self, decay: float) -> None:
        """One step of the running average."""
        if self.averaged is None:
            raise RuntimeError("averaging must be begun before the first update")
        average_(self.averaged, self.model.state_dict(), decay)

    def begin_average(self) -> None:
        self.averaged = copied(self.model.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by a name, for a checkpoint."""
        carried = {} if self.carried is None else {"delta": self.carried}
        return self._moving() | _named({"best": self.best, "carried": carried, "good": self.good})

    def is_finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in self._moving().values())

    def keep(self) -> None:
        """Remember what the next step would start from, to `go_back` to."""
        self.good = copied(self._moving())

    def go_back(self) -> None:
        self._take(self.good)

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Take up the state that `tensors` and the counters were saved from."""
        try:
            self._take(tensors)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise UserError(f"the checkpoint belongs to another architecture: {reason}") from None
        device = self._parameters()[0].device
        held = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.best, self.good = _under("best", held), _under("good", held) or self.good
        self.carried = held.get("carried/delta")
        self.counters = Counters.from_json(meta["counters"])

    def _moving(self) -> dict[str, Tensor]:
        """What an update changes, by name."""
        momentum = {str(i): buffer for i, buffer in self._momenta().items()}
        groups = {
            "model": self.model.state_dict(),
            "averaged": self.averaged or {},
            "momentum": momentum,
        }
        return _named(groups)

    def _take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies of what `_moving` named, in place of what there is."""
        self.model.load_state_dict(_under("model", tensors))
        parameters = self._parameters()
        averaged = copied(_under("averaged", tensors))
        averaged = {name: tensor.to(parameters[0].device) for name, tensor in averaged.items()}
        self.averaged = averaged or self.averaged
        self.optimiser.state.clear()
        for index, buffer in _under("momentum", tensors).items():
            parameter = parameters[int(index)]
            # In the parameter's memory layout, so that updates round as they did before.
            kept = torch.empty_like(parameter).copy_(buffer)
            self.optimiser.state[parameter]["momentum_buffer"] = kept

    def _parameters(self) -> list[nn.Parameter]:
        return list(self.optimiser.param_groups[0]["params"])

    def _momenta(self) -> dict[int, Tensor]:
        held = ((i, self.optimiser.state[p]) for i, p in enumerate(self._parameters()))
        buffers = {i: state.get("momentum_buffer") for i, state in held}
        return {i: buffer for i, buffer in buffers.items() if buffer is not None}


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


@torch.no_grad()
def average_(shadow: dict[str, Tensor], state: Mapping[str, Tensor], decay: float) -> None:
    """shadow <- decay shadow + (1 - decay) state, BatchNorm's statistics included.

    Integer buffers (counts of batches) are averaged and truncated, as SEAT's code does.
    """
    for name, value in state.items():
        held = shadow[name]
        if held.is_floating_point():
            held.mul_(decay).add_(value, alpha=1 - decay)
        else:
            held.copy_(decay * held.double() + (1 - decay) * value.double())


@torch.no_grad()
def unit_rows_(shadow: dict[str, Tensor], model: nn.Module) -> None:
    """The average of unit rows is not unit: renormalise those of cosine heads."""
    heads = set(cosine_heads(model))
    for name, module in model.named_modules():
        if module in heads:
            weight = shadow[f"{name}.weight" if name else "weight"]
            weight.div_(torch.linalg.vector_norm(weight, dim=1, keepdim=True).clamp_min(1e-12))


def _named(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{group}/{k}": v for group, held in groups.items() for k, v in held.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = prefix + "/"
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}
