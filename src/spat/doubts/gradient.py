"""No gradient to follow: zero, vanishing or NaN.

Measured where the attack in question starts, for its own loss. Where the gradient is zero though
noise within the budget changes the logits, the model is masked, not robust.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spat import losses
from spat.attacks.pgd import PGD
from spat.doubts._base import Doubt, percent, share_level
from spat.doubts._subject import Subject
from spat.findings import Finding, Level

VANISHED = 1e-19  # below the root of the smallest float32: the square underflows, and so the length


@dataclass(frozen=True, kw_only=True)
class Gradient(Doubt):
    """Zero, vanishing, NaN or missing gradients of the attack's loss.

    amber: share of examples without a usable gradient that must surely be exceeded for amber
    red: the same for red
    """

    amber: float = 0.02
    red: float = 0.1
    advice = (
        "attack a version that lets gradients through (straight-through, a smooth stand-in), "
        "use the margin as loss, or attack without gradients."
    )

    def __call__(self, subject: Subject) -> Finding:
        x = subject.attack.threat.project(
            subject.x + subject.attack.threat.start(subject.x, subject.random("start")), subject.x
        )
        given = subject.gradient(x, _loss(subject))
        nan = int((~torch.isfinite(given)).flatten(1).any(1).sum())
        largest = given.nan_to_num().abs().flatten(1).amax(1)
        zero, vanished = int((largest == 0).sum()), int((largest < VANISHED).sum())
        level: Level = share_level(vanished, len(subject), amber=self.amber, red=self.red)
        return self.finding(
            "red" if nan else level,
            self._reason(subject, x, nan, vanished, zero, "green" if nan else level),
            zero_examples=zero / len(subject),
            vanishing_examples=vanished / len(subject),
            nan_examples=nan / len(subject),
            zero_pixels=float((given == 0).float().mean()),
        )

    def _reason(
        self, subject: Subject, x: Tensor, nan: int, vanished: int, zero: int, level: Level
    ) -> str:
        n = len(subject)
        if nan:
            return f"the gradient is NaN or infinite for {percent(nan, n)} of the examples."
        if level == "green":
            return f"{percent(n - vanished, n)} of the examples have a gradient to follow."
        kind = "zero" if zero == vanished else "zero or too small for float32"
        return (
            f"the gradient is {kind} for {percent(vanished, n)} of the examples{_why(subject, x)}"
        )


def _loss(subject: Subject) -> losses.AttackLoss:
    attack = subject.attack
    return attack.named_loss if isinstance(attack, PGD) else losses.attack_loss("ce")


def _why(subject: Subject, x: Tensor) -> str:
    """The cause, from the nearest to the logits to the farthest."""
    if _is_cut(subject, x[:1]):
        return ": the model cuts the graph between image and logits (detach, no_grad, a rewrap)."
    margins = subject.gradient(x, losses.attack_loss("margin")).flatten(1).abs().amax(1)
    if float((margins > VANISHED).float().mean()) > 0.5:
        return ": the softmax is saturated, as the logits are too large for the cross entropy."
    if not torch.equal(subject.logits(subject.noisy(0)), subject.clean):
        return (
            ", though noise changes the logits: something flat (rounding, a sign, saturation) "
            "masks it."
        )
    return ", and noise does not change the logits either: the model ignores the image."


def _is_cut(subject: Subject, x: Tensor) -> bool:
    x = x.detach().requires_grad_()
    z = subject.model(x)
    if not z.requires_grad:
        return True
    return torch.autograd.grad(z.sum(), x, allow_unused=True)[0] is None
