"""A first question to a model, whoever wrote it: does it answer as a classifier?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spat.contracts import check_logits, check_not_probabilities
from spat.errors import UserError, told
from spat.modes import borrowed


def answer(model: nn.Module, x: Tensor) -> Tensor:
    """The logits of some images, from a model of which nothing is known yet."""
    device = next((p.device for p in model.parameters()), x.device)
    with borrowed(model, device), torch.no_grad():
        try:
            z: Tensor = model(x.to(device))
        except Exception as error:
            raise UserError(
                f"the model cannot take images of shape {tuple(x.shape)}: {told(error)}."
            ) from error
    check_logits(z, len(x))
    return z


def check_classifies(model: nn.Module, x: Tensor, classes: int) -> None:
    """A logit for each class, from such images: asked before hours of training."""
    z = answer(model, x)
    if z.shape[1] < classes:
        raise UserError(
            f"the model must return a logit for each of the {classes} classes, got {z.shape[1]}."
        )
    check_not_probabilities(z)
