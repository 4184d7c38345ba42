"""What the targeted searches share: terms of a label and a target, and what to say of few classes.

z: logits [n, C].  y: labels [n].  t: target classes [n].
"""

from __future__ import annotations

from torch import Tensor

from spat.errors import UserError


def towards(z: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """z_t - z_y: positive where the target beats the label."""
    return -(_at(z, y) - _at(z, t))


def targeted_dlr(z: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2), to be maximised; needs four classes."""
    first, _, third, fourth = z.topk(4, 1).values.unbind(1)
    return towards(z, y, t) / (first - 0.5 * (third + fourth) + 1e-12)


def check_targets(targets: int) -> None:
    if targets < 1:
        raise UserError(f"targets must be 1 or more, got {targets}.")


def fewer_targets(targets: int, classes: int) -> str:
    """Said when a model has fewer other classes than the attack would aim at; else empty."""
    if classes > targets:
        return ""
    left = "1 target" if classes == 2 else f"{classes - 1} targets"
    return f"{classes} classes: {left} instead of {targets}."


def _at(z: Tensor, c: Tensor) -> Tensor:
    return z.gather(1, c[:, None]).squeeze(1)
