"""One update of a model: an attack on a fast copy of it, the training passes, a step of SGD.

The inner attack is nearly the whole cost of adversarial training. It runs on an evaluation copy
that takes over the model's weights before each attack; the training passes run on the model itself,
in bfloat16 where the copy does. `exact` attacks the model itself, in float32 and as its tensors
lie, so that each iterate is, bit for bit, that of the literal algorithm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.defences._base import Crafted, Defence, Progress, Terms
from spat.fast import Precision, Surrogate, surrogate, uses_bfloat16
from spat.models import renormalise_heads
from spat.rng import generator, global_seed
from spat.training.state import State


def sgd(
    model: nn.Module, *, lr: float, momentum: float = 0.9, weight_decay: float = 2e-4
) -> torch.optim.SGD:
    """The optimiser of the parameters that are not frozen."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=lr, momentum=momentum, weight_decay=weight_decay)


class Engine:
    """Makes updates of the model of `state`.

    precision: of the attack and of the training passes; the losses are float32 throughout
    example: images on which the fast copy is compared with the model before it is used
    """

    def __init__(
        self,
        state: State,
        *,
        precision: Precision = "auto",
        exact: bool = False,
        example: Tensor | None = None,
    ) -> None:
        self.state, self.model = state, state.model
        if not self.model.training:  # one in train mode keeps the modules its owner froze
            self.model.train()
        model = self.model
        self.mixed = not exact and uses_bfloat16(model, precision)
        self.copy: Surrogate | None = None
        if not exact:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.copy = surrogate(model, precision=precision, example=example)

    def attacked(self) -> nn.Module:
        """What an attack is to see in the model's place, with the weights of now."""
        if self.copy is None:
            return self.model
        self.copy.refresh(self.model)
        return self.copy

    def update(
        self,
        defence: Defence,
        x: Tensor,
        y: Tensor,
        *,
        seed: int,
        step: int,
        lr: float,
        progress: Progress | None = None,
        accept: Callable[[Terms], None] = lambda terms: None,
    ) -> Terms:
        """One update. Dropout draws from a seeded global generator; the attack has its own.

        accept: sees the loss before anything is changed by it, and may raise
        """
        noise = generator(seed, "attack", step)
        with global_seed(x.device, seed, "forward", step):
            crafted, terms = self.forward(defence, x, y, noise, progress)
            accept(terms)
            self.backward(terms.loss)
        self.state.carry(defence.carry(crafted, x))
        self.descend(lr)
        return terms

    def forward(
        self, defence: Defence, x: Tensor, y: Tensor, rng: Rng, progress: Progress | None
    ) -> tuple[Crafted, Terms]:
        """The inner attack, the training passes and the loss of their logits."""
        carried = self.state.carried_for(x)
        crafted = defence.craft(self.attacked(), x, y, rng=rng, noise=carried)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed):
            return crafted, defence.respond(self.model, x, y, crafted, progress)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss, in place of those there were."""
        self.state.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]

    def descend(self, lr: float) -> None:
        """The optimiser's step along the gradients; rows of a cosine head stay unit."""
        for group in self.state.optimiser.param_groups:
            group["lr"] = lr
        self.state.optimiser.step()
        renormalise_heads(self.model)
