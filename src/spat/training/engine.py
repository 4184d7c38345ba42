"""One update of a model: an attack on a fast copy of it, the training passes, a step of SGD.

The inner attack is nearly the whole cost of adversarial training. It runs on an evaluation copy
that takes over the model's weights before each attack; the training passes run on the model itself,
in bfloat16 where the copy does. `exact` attacks the model's own operations, in float32 and as its
tensors lie, so that each iterate is, bit for bit, that of the literal algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from spat.defences._base import Crafted, Defence, Progress, Terms
from spat.errors import UserError
from spat.fast import (
    Compile,
    Exact,
    Precision,
    Surrogate,
    deep_small_maps,
    surrogate,
    uses_bfloat16,
)
from spat.models import renormalise_heads
from spat.rng import global_seed
from spat.training.batches import Batch
from spat.training.parts import cat, detached, joined, one_by_one
from spat.training.state import State
from spat.training.together import average_buffers, response, unreduced, whole_batch
from spat.world import ALONE, World

Means = Mapping[str, float]
Seeded = Callable[[], AbstractContextManager[None]]


def sgd(
    model: nn.Module, *, lr: float, momentum: float = 0.9, weight_decay: float = 2e-4
) -> torch.optim.SGD:
    """The optimiser of the parameters that are not frozen."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise UserError("the model has no parameters to train; are all of them frozen?")
    return torch.optim.SGD(trained, lr=lr, momentum=momentum, weight_decay=weight_decay)


class Engine:
    """Makes updates of the model of `state`.

    precision: of the attack and of the training passes; the losses are float32 throughout
    example: images on which the fast copy is compared with the model before it is used
    world: the processes that share each batch
    compile: of the fast copy: off, inductor or cuda-graphs
    sync: among them, BatchNorm's statistics are those of the whole batch
    micro_batch: images that go through the model at once; None: all that this process has
    """

    def __init__(
        self,
        state: State,
        *,
        precision: Precision = "auto",
        exact: bool = False,
        example: Tensor | None = None,
        world: World = ALONE,
        sync: bool = True,
        compile: Compile = "off",
        micro_batch: int | None = None,
    ) -> None:
        if exact and compile != "off":
            raise UserError(f"exact attacks the model itself: set compile to off, got {compile!r}.")
        self.state, self.model = state, state.model
        self.world, self.sync, self.micro_batch = world, sync, micro_batch
        if not self.model.training:  # one in train mode keeps the modules its owner froze
            self.model.train()
        model = self.model
        self.mixed = not exact and uses_bfloat16(model, precision)
        self.copy: Surrogate | None = None
        self.exact = Exact(model) if exact else None
        if not exact:
            self.copy = surrogate(model, precision=precision, example=example, compile=compile)
            if self.copy.any_layout:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.response = response(model, world)

    def attacked(self) -> nn.Module:
        """What an attack is to see in the model's place, with the weights of now."""
        if self.copy is None:
            return self.model
        self.copy.refresh(self.model)
        return self.copy

    def update(
        self,
        defence: Defence,
        batch: Batch,
        *,
        seed: int,
        step: int,
        lr: float,
        progress: Progress | None = None,
        accept: Callable[[Means], None] = lambda means: None,
    ) -> Means:
        """One update; the means over the whole batch of the loss and of its terms.

        Dropout draws from a seeded global generator; the attack has a stream for each image.
        accept: sees the means before the weights are changed, and may raise
        """
        parts = batch.parts(self.pieces(batch.n))
        seeded = partial(global_seed, batch.x.device, seed, "forward", step)
        with seeded():
            crafted = self.craft(defence, parts, batch, (seed, "attack", step))
        terms = self.passes(defence, parts, crafted, progress, seeded)
        means = self.means(terms, batch.n)
        accept(means)
        kept = [defence.carry(made, part.x) for made, part in zip(crafted, parts, strict=True)]
        self.state.carry(cat(kept))
        self.descend(lr)
        return means

    def pieces(self, n: int) -> int:
        """In how many parts the processes' shares of n images go through the model."""
        if self.micro_batch is None:
            return 1
        largest, smallest = math.ceil(n / self.world.size), n // self.world.size
        return min(math.ceil(largest / self.micro_batch), smallest)  # no share has an empty part

    def craft(
        self, defence: Defence, parts: Sequence[Batch], batch: Batch, names: Sequence[int | str]
    ) -> list[Crafted]:
        """The inner attack on each part, with a stream of random numbers for each image."""
        carried, attacked = self.state.carried_for(batch.x), self.attacked()
        noise = [None] * len(parts) if carried is None else carried.tensor_split(len(parts))
        return self.world.agreed(  # logits may be no numbers for one share only
            lambda: [
                defence.craft(
                    attacked if self.exact is None else self.exact.on(part.x),
                    part.x,
                    part.y,
                    rng=part.source(*names),
                    noise=delta,
                )
                for part, delta in zip(parts, noise, strict=True)
            ]
        )

    def passes(
        self,
        defence: Defence,
        parts: Sequence[Batch],
        crafted: Sequence[Crafted],
        progress: Progress | None,
        seeded: Seeded,
    ) -> Terms:
        """The training passes, forwards and back; the terms of all parts, without a graph."""

        def work(number: int, world: World) -> Terms:
            part, seen = parts[number], replace(crafted[number], world=world)
            with seeded(), unreduced(self.response, number < len(parts) - 1):
                terms = self.respond(defence, part, seen, progress)
                share = self.world.share(len(part.x), part.n)
                (share * terms.loss).backward()  # type: ignore[no-untyped-call]
            return detached(terms)

        self.state.optimiser.zero_grad(set_to_none=True)
        found = one_by_one(work, parts, self.model, self.world)
        if not self.sync:
            average_buffers(self.model, self.world)
        return joined(found)

    def respond(
        self, defence: Defence, part: Batch, crafted: Crafted, progress: Progress | None
    ) -> Terms:
        """The training passes of a part of a batch and the loss of their logits."""
        with self.mixing(), whole_batch(self.model, self.world, part, sync=self.sync):
            terms: Terms = self.response(defence, part.x, part.y, crafted, progress)
        return terms

    @contextmanager
    def mixing(self) -> Iterator[None]:
        """The training passes in bfloat16, where the attack is."""
        device = next(self.model.parameters()).device
        if not self.mixed:
            yield
        elif device.type == "cpu":
            with torch.autocast("cpu", torch.bfloat16), deep_small_maps(self.model):
                yield
        else:
            with torch.autocast(device.type, torch.bfloat16):
                yield

    def means(self, terms: Terms, n: int) -> Means:
        """Over all n images, whoever has them, in one message and one wait for the device."""
        parts = {"loss": terms.per_example, **{f"term.{k}": v for k, v in terms.named.items()}}
        sums = torch.stack([part.detach().double().sum() for part in parts.values()])
        return dict(zip(parts, (self.world.total(sums) / n).tolist(), strict=True))

    def descend(self, lr: float) -> None:
        """The optimiser's step along the gradients; rows of a cosine head stay unit."""
        for group in self.state.optimiser.param_groups:
            group["lr"] = lr
        self.state.optimiser.step()
        renormalise_heads(self.model)
