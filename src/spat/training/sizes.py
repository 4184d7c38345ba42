"""Progressive resizing: smaller images first, for models that take images of any size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spat.config import Training
from spat.datasets import shrunk
from spat.defences._base import Progress
from spat.errors import UserError
from spat.modes import borrowed
from spat.training.schedule import value_now


def image_scale(settings: Training, progress: Progress) -> float:
    """The share of their side that training images have at this point of training."""
    if not settings.image_scales:
        return 1.0
    return value_now(settings.image_scales, settings.image_milestones, progress)


def require_sizes(model: nn.Module, example: Tensor, settings: Training) -> None:
    """A model whose last layers count pixels cannot be trained on fewer of them."""
    for scale in sorted(set(settings.image_scales)):
        x = shrunk(example, scale)
        try:
            with borrowed(model, x.device), torch.no_grad():
                model(x)
        except Exception as error:  # of the model's own code
            reason = str(error).partition("\n")[0]
            raise UserError(
                "image_scales needs a model for images of any size, and this one fails at "
                f"{x.shape[2]}x{x.shape[3]} pixels ({reason}): take resnet18, say, or leave "
                "image_scales out."
            ) from None
