"""One update of a model: an attack on a fast copy of it, the training passes, a step of SGD.

The inner attack is nearly the whole cost of adversarial training. It runs on an evaluation copy
that takes over the model's weights before each attack; the training passes run on the model itself,
in bfloat16 where the copy does. `exact` attacks the model itself, in float32 and as its tensors
lie, so that each iterate is, bit for bit, that of the literal algorithm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spat.attacks._base import Rng
from spat.defences._base import Crafted, Defence, Progress, Terms
from spat.fast import Precision, Surrogate, surrogate, uses_bfloat16
from spat.models import renormalise_heads


class Engine:
    """Makes updates of `model` by `optimiser`.

    precision: of the attack and of the training passes; the losses are float32 throughout
    example: images on which the fast copy is compared with the model before it is used
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        precision: Precision = "auto",
        exact: bool = False,
        example: Tensor | None = None,
    ) -> None:
        self.model, self.optimiser = model, optimiser
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

    def forward(
        self,
        defence: Defence,
        x: Tensor,
        y: Tensor,
        *,
        rng: Rng = None,
        noise: Tensor | None = None,
        progress: Progress | None = None,
    ) -> tuple[Crafted, Terms]:
        """The inner attack, the training passes and the loss of their logits."""
        crafted = defence.craft(self.attacked(), x, y, rng=rng, noise=noise)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed):
            return crafted, defence.respond(self.model, x, y, crafted, progress)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss, in place of those there were."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]

    def descend(self, lr: float) -> None:
        """The optimiser's step along the gradients; rows of a cosine head stay unit."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.step()
        renormalise_heads(self.model)
