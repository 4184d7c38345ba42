"""One update of a model: an attack on a fast copy of it, the training passes, a step of SGD.

The inner attack is nearly the whole cost of adversarial training. It runs on an evaluation copy
that takes over the model's weights before each attack; the training passes run on the model itself,
in bfloat16 where the copy does. `exact` attacks the model itself, in float32 and as its tensors
lie, so that each iterate is, bit for bit, that of the literal algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.defences._base import Crafted, Defence, Progress, Terms
from spat.errors import UserError
from spat.fast import Compile, Precision, Surrogate, surrogate, uses_bfloat16
from spat.models import renormalise_heads
from spat.rng import global_seed
from spat.training.batches import Batch
from spat.training.state import State
from spat.training.together import average_buffers, response, whole_batch
from spat.world import ALONE, World

Means = Mapping[str, float]


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
    ) -> None:
        if exact and compile != "off":
            raise UserError(f"exact attacks the model itself: set compile to off, got {compile!r}.")
        self.state, self.model = state, state.model
        self.world, self.sync = world, sync
        if not self.model.training:  # one in train mode keeps the modules its owner froze
            self.model.train()
        model = self.model
        self.mixed = not exact and uses_bfloat16(model, precision)
        self.copy: Surrogate | None = None
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
        accept: sees the means before anything is changed by them, and may raise
        """
        noise = batch.source(seed, "attack", step)
        with global_seed(batch.x.device, seed, "forward", step):
            crafted, terms = self.forward(defence, batch, noise, progress)
            means = self.means(terms, batch.n)
            accept(means)
            self.backward(self.world.share(len(batch.x), batch.n) * terms.loss)
        self.state.carry(defence.carry(crafted, batch.x))
        self.descend(lr)
        return means

    def forward(
        self, defence: Defence, batch: Batch, rng: Rng, progress: Progress | None
    ) -> tuple[Crafted, Terms]:
        """The inner attack, the training passes and the loss of their logits."""
        x, y = batch.x, batch.y
        carried, attacked = self.state.carried_for(x), self.attacked()
        crafted = self.world.agreed(  # logits may be no numbers for one share only
            lambda: defence.craft(attacked, x, y, rng=rng, noise=carried)
        )
        crafted = replace(crafted, world=self.world)
        mixed = torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed)
        with mixed, whole_batch(self.model, self.world, batch.n, sync=self.sync):
            terms: Terms = self.response(defence, x, y, crafted, progress)
        return crafted, terms

    def means(self, terms: Terms, n: int) -> Means:
        """Over all n images, whoever has them, in one message and one wait for the device."""
        parts = {"loss": terms.per_example, **{f"term.{k}": v for k, v in terms.named.items()}}
        sums = torch.stack([part.detach().double().sum() for part in parts.values()])
        return dict(zip(parts, (self.world.total(sums) / n).tolist(), strict=True))

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss, in place of those there were."""
        self.state.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if not self.sync:
            average_buffers(self.model, self.world)

    def descend(self, lr: float) -> None:
        """The optimiser's step along the gradients; rows of a cosine head stay unit."""
        for group in self.state.optimiser.param_groups:
            group["lr"] = lr
        self.state.optimiser.step()
        renormalise_heads(self.model)
