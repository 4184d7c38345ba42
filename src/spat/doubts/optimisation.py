"""Work done inside forward: gradients taken, gradient mode switched, weights or buffers changed.

A model that optimises at test time (purifies its input, adapts its weights) answers an attack with
another one, through which no gradient flows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from spat.doubts._base import Doubt
from spat.doubts._subject import Subject
from spat.findings import Finding

PROBES = 4


class Watch(TorchFunctionMode):
    """Sees every torch function that a forward pass calls without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients, self.switched = 0, False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.gradients += func in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
        self.switched |= torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, kw_only=True)
class Optimisation(Doubt):
    """The forward pass takes gradients, switches gradient mode on, or changes the model."""

    advice = (
        "attack the whole defence: unroll its inner optimisation, or attack without gradients "
        "(Square, transfer)."
    )

    def __call__(self, subject: Subject) -> Finding:
        held = list(chain(subject.model.parameters(), subject.model.buffers()))
        before = [tensor.detach().clone() for tensor in held]
        with torch.no_grad(), Watch() as watch:
            subject.model(subject.x[:PROBES])
        changes = sum(not _same(a, b) for a, b in zip(before, held, strict=True))
        numbers = {"gradients_taken": watch.gradients, "tensors_changed": changes}
        if watch.gradients:
            reason = "the model takes gradients inside its forward pass: it optimises when asked."
            return self.finding("red", reason, **numbers)
        if changes:
            reason = (
                f"a forward pass in eval mode changes {changes} weights or buffers of the model."
            )
            return self.finding("red", reason, **numbers)
        if watch.switched:
            reason = "the model switches gradients on inside its forward pass."
            return self.finding("amber", reason, **numbers)
        return self.finding("green", "the forward pass only computes logits.", **numbers)


def _same(before: Tensor, after: Tensor) -> bool:
    return torch.equal(before.nan_to_num(), after.detach().nan_to_num())
