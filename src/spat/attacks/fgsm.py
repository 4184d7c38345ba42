"""Fast gradient sign method (Goodfellow et al. 2015): one step of full length from the image."""

from __future__ import annotations

from typing import Literal

from spat.attacks.pgd import PGD
from spat.threat import Budget, Norm


def fgsm(
    *,
    eps: Budget = 8 / 255,
    norm: Norm = "linf",
    loss: Literal["ce", "margin", "dlr"] = "ce",
    loss_scale: float = 1.0,
) -> PGD:
    """One gradient step of length eps from the clean image.

    eps: budget: 0 to 1 for linf, such as 8/255; a Euclidean length for l2
    norm: linf or l2
    loss: what is maximised: ce, margin or dlr
    loss_scale: multiplies the logits first: a cosine head needs its scale
    """
    return PGD(eps=eps, norm=norm, steps=1, start="zero", loss=loss, loss_scale=loss_scale)
