"""A few updates on made-up images, by a copy of the model: what real ones will need.

    memory of n images = fixed + n x each

fixed: weights, gradients, the optimiser's buffers, the copy that is attacked, an average if any.
each: what an image's activations take, from the peaks of two small batches. Memory does not grow
with the steps of the inner attack, so two of them are made. On a CPU a process takes more than its
tensors do at any one time: the C library keeps what is freed, in pieces.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from spat.config import Training
from spat.defences._base import Defence
from spat.rng import generator
from spat.training import live
from spat.training.batches import alone
from spat.training.engine import Engine, sgd
from spat.training.state import State, copied

FEW, SOME = 8, 16  # images of the small batches
ATTACK_STEPS = 2
KEPT = 1.7  # measured with glibc: 1.64 to 1.81 times the live tensors of SmallCNN and ResNet-18


@dataclass(frozen=True)
class Memory:
    """Bytes of a step, by its number of images."""

    fixed: float
    each: float

    def of(self, images: int) -> float:
        return self.fixed + self.each * images


class Trial:
    """Trains a copy of the model, which has the device for as long as this lives."""

    def __init__(
        self,
        model: nn.Module,
        defence: Defence,
        settings: Training,
        shape: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        self.defence, self.settings, self.shape, self.device = defence, settings, shape, device
        model = copy.deepcopy(model).to(device)
        self.state = State(model, sgd(model, lr=settings.lr, momentum=settings.momentum))
        self.engine = Engine(
            self.state,
            precision=settings.precision,
            exact=settings.exact,
            example=self._batch(2)[0],
        )
        if settings.ema > 0 or defence.ema_decay(0) is not None:
            self.state.begin_average()
        self.state.best = copied(model.state_dict())
        if settings.guard == "rollback":
            self.state.keep()

    def step(self, images: int, defence: Defence | None = None) -> None:
        """One update; its rate is zero, so that no number ever runs away."""
        batch = alone(*self._batch(images))
        self.engine.update(defence or self.defence, batch, seed=0, step=0, lr=0.0)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def memory(self) -> Memory:
        """From two small batches, which go through the model whole."""
        kept = KEPT if self.device.type == "cpu" else 1.0
        few, some = kept * self.peak(FEW), kept * self.peak(SOME)
        each = (some - few) / (SOME - FEW)
        return Memory(few - each * FEW, each)

    def peak(self, images: int) -> int:
        """Bytes of all tensors when a step has most of them."""
        attack = self.defence.attack
        brief = replace(attack, steps=min(attack.steps, ATTACK_STEPS))
        defence = replace(self.defence, attack=brief)
        self.step(2, defence)  # now gradients and momentum are there, as between any two steps
        made = live.peak(lambda: self.step(images, defence), self.device)
        return live.size(self._held()) + made

    def seconds(self, images: int, steps: int = 2) -> float:
        """Of the fastest of some steps, after one that is not counted."""
        times = []
        for _ in range(1 + steps):
            begun = time.perf_counter()
            self.step(images)
            times.append(time.perf_counter() - begun)
        return min(times[1:])

    def _held(self) -> Iterator[Tensor]:
        """What is there between two steps."""
        model, copied = self.state.model, self.engine.copy
        nets = [model] if copied is None or copied.net is model else [model, copied]
        for net in nets:
            yield from chain(net.parameters(), net.buffers())
        yield from (p.grad for p in model.parameters() if p.grad is not None)
        yield from self.state.tensors().values()

    def _batch(self, images: int) -> tuple[Tensor, Tensor]:
        rng = generator("trial")
        x = torch.rand(images, *self.shape, generator=rng)
        return x.to(self.device), torch.randint(0, 2, (images,), generator=rng).to(self.device)
