"""Self-paced reweighting as parts that any defence of logits can use (Hou, Han & Li, AAAI 2023).

o, o': what the model returns for x, x'.   c_j: cosine of the features to the row of class j.
    z = s c (logits="cosine": the model has a cosine head)  or  z = o (logits="raw": a linear one)
    g_y = 1 - c_y + beta,   g_j = c_j + beta  (j != y)                         self-paced gains
    accuracy term:    CE(g z, y) if sp has it, else CE(z, y), that is gain 1
    t_j = p_j log(p_j / q_j),   p = softmax(z),   q = softmax(z')              no gains here
    robustness term:  alpha sum_j t_j + sum_j t_j^2 if sp has it, else KL = sum_j t_j, weight 1

With raw logits the gains still come from cosines, because a gain of unbounded logits would make
g z quadratic: those between the features that enter the last linear layer and its rows. The paper
ablates cross-entropy with self-paced gains ("SP-CE") but does not say where they come from; this is
our choice. Its "g = 0" for an accuracy term without gains is a slip: that loss is constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from spat.defences._base import (
    Crafted,
    Defence,
    Head,
    Progress,
    Terms,
    in_range,
    one_of,
    positive,
    precise,
)
from spat.errors import UserError
from spat.losses import AttackLoss, ce, log_ratio
from spat.models._heads import unit

Parts = Literal["none", "accuracy", "robustness", "both"]
Logits = Literal["raw", "cosine"]
Cosines = Sequence[Tensor | None]
NO_COSINES: Cosines = (None,)


@dataclass(frozen=True, kw_only=True)
class SelfPaced(Defence):
    """Settings and parts of the defences that self-paced reweighting composes with.

    sp: which terms are self-paced: none, accuracy, robustness or both
    logits: raw (a linear head), or cosine: scale times the output of a cosine head
    scale: s, what cosines are multiplied by to become logits
    alpha: weight of KL inside the self-paced robustness term
    beta: smoothing of the gains, so that neither vanishes
    detach_gains: treat the gains as constants: same value, other gradient
    """

    sp: Parts = "none"
    logits: Logits = "raw"
    scale: float = 5.0
    alpha: float = 0.2
    beta: float = 0.2
    detach_gains: bool = False

    def __post_init__(self) -> None:
        one_of(self.name, get_args(Parts), sp=self.sp)
        one_of(self.name, get_args(Logits), logits=self.logits)
        positive(self.name, scale=self.scale)
        in_range(self.name, 0.0, float("inf"), alpha=self.alpha, beta=self.beta)

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def head(self) -> Head:
        return "cosine" if self.logits == "cosine" else "linear"

    def z(self, out: Tensor) -> Tensor:
        """The logits that the model's output stands for."""
        return self.scale * out if self.logits == "cosine" else out

    def gains(self, c: Tensor, y: Tensor) -> Tensor:
        """g [n, C]: large for the true class while it is far, for a false one while it is near."""
        true = F.one_hot(y, c.shape[1]).bool()
        g = (1 - c).where(true, c) + self.beta
        return g.detach() if self.detach_gains else g

    def gained(self, out: Tensor, y: Tensor, cosines: Tensor | None = None) -> Tensor:
        """The logits of the accuracy term: g z, or z where that term is not self-paced."""
        if self.sp not in ("accuracy", "both"):
            return self.z(out)
        c = out if self.logits == "cosine" else cosines
        if c is None:
            raise UserError(
                f"{self.name} with sp={self.sp!r} and raw logits takes its gains from cosines: "
                "pass cosines= to terms, or set logits='cosine'."
            )
        return self.gains(c, y) * self.z(out)

    def accuracy(self, out: Tensor, y: Tensor, cosines: Tensor | None = None) -> Tensor:
        return ce(self.gained(out, y, cosines), y)

    def log_ratios(self, clean: Tensor, adv: Tensor, floor: float = 0.0) -> Tensor:
        """t [n, C]."""
        return log_ratio(self.z(clean), self.z(adv), floor)

    def divergence(self, t: Tensor) -> Tensor:
        """The robustness term: L_rob of SPAT, or KL where that term is not self-paced."""
        if self.sp not in ("robustness", "both"):
            return t.sum(1)
        return self.alpha * t.sum(1) + t.square().sum(1)

    def inner_loss(self) -> AttackLoss:
        """The loss named in the attack's settings, on the logits that the training loss sees."""
        named = self.attack.named_loss
        return lambda adv, y, clean: named(self.z(adv), y, None if clean is None else self.z(clean))

    def inner_divergence(self) -> AttackLoss:
        """The divergence that training minimises, whatever loss the attack's settings name."""

        def loss(adv: Tensor, y: Tensor, clean: Tensor | None) -> Tensor:
            assert clean is not None
            return self.divergence(self.log_ratios(clean, adv))

        return loss

    def respond(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        crafted: Crafted,
        progress: Progress | None = None,
    ) -> Terms:
        if self.logits == "cosine" or self.sp not in ("accuracy", "both"):
            return super().respond(model, x, y, crafted, progress)
        with head_cosines(model) as cosines:  # filled while the passes run, before terms reads it
            watched = replace(crafted, seen={**crafted.seen, "cosines": cosines})
            return super().respond(model, x, y, watched, progress)


@contextmanager
def head_cosines(model: nn.Module) -> Iterator[Cosines]:
    """For each forward pass, in order: cosines of the last linear layer's input to its rows."""
    seen: list[Tensor] = []
    last: list[tuple[Tensor, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        last[:] = [(inputs[0], layer.weight)]

    def end(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        if not last or len(last[0][1]) != output.shape[1]:
            raise UserError(
                "self-paced gains on raw logits need a model that ends in nn.Linear: "
                "change its last layer, or set sp='none' or sp='robustness'."
            )
        features, rows = last.pop()
        seen.append(precise(F.linear(unit(features), unit(rows))))

    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    handles.append(model.register_forward_hook(end))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
