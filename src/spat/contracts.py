"""What must hold of images, labels and logits: one sentence each when it does not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spat.errors import NonFiniteError, UserError


def check_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"the model must be a torch.nn.Module, got {type(model).__name__}.")


def check_images(x: Tensor) -> None:
    """Floating point, at least one image, finite, within [0, 1]."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"images must be a floating-point tensor in [0, 1], got {kind}.")
    if x.ndim < 2 or x.numel() == 0:
        raise UserError(f"images must be a batch of at least one, got shape {tuple(x.shape)}.")
    low, high = (float(v) for v in x.detach().aminmax())
    if not (low >= 0.0 and high <= 1.0):  # also false for NaN
        raise UserError(
            f"images must lie in [0, 1], got values in [{low:.4g}, {high:.4g}]; "
            "scale bytes by 1/255 and put normalisation inside the model."
        )


def check_labels(y: Tensor, n: int, classes: int | None = None) -> None:
    """Integers, one an image, each a class of the model."""
    if not isinstance(y, Tensor) or y.dtype not in (torch.int64, torch.int32, torch.uint8):
        kind = str(y.dtype) if isinstance(y, Tensor) else type(y).__name__
        raise UserError(f"labels must be an integer tensor, got {kind}.")
    if tuple(y.shape) != (n,):
        raise UserError(f"labels must have shape ({n},), one an image, got {tuple(y.shape)}.")
    low, high = int(y.min()), int(y.max())
    if low < 0 or (classes is not None and high >= classes):
        wrong = low if low < 0 else high
        limit = f"0 to {classes - 1}" if classes is not None else "0 or more"
        raise UserError(f"labels must be classes of the model ({limit}), got {wrong}.")


def check_logits(z: Tensor, n: int) -> None:
    """A finite row of class scores an image."""
    if not isinstance(z, Tensor):
        raise UserError(f"the model must return a tensor of logits, got {type(z).__name__}.")
    if z.ndim != 2 or z.shape[0] != n or z.shape[1] < 2:
        raise UserError(
            f"the model must return logits of shape ({n}, classes), got {tuple(z.shape)}."
        )
    if not bool(torch.isfinite(z.detach()).all()):
        raise NonFiniteError(
            "the model returns NaN or infinite logits; check its weights and input."
        )


def look_like_probabilities(z: Tensor) -> bool:
    """Whether every row is a probability distribution, as after a softmax."""
    in_range = bool((z >= 0).all()) and bool((z <= 1).all())
    return in_range and bool(torch.allclose(z.sum(1), torch.ones_like(z[:, 0]), atol=1e-3))


def check_not_probabilities(z: Tensor) -> None:
    if look_like_probabilities(z):
        raise UserError(
            "the model returns probabilities, not logits: attacks on them are blunted; "
            "remove the softmax at its end."
        )
