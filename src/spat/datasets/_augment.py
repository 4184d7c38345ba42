"""The field's augmentation: a random crop of the zero-padded image, and a mirror by fair coin."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from spat.errors import UserError


def crop_flip(
    x: Tensor, rng: torch.Generator, pad: int = 4, *, among: tuple[Tensor, int] | None = None
) -> Tensor:
    """Shift each of x [n, c, h, w] by up to `pad` pixels (zeros come in), then mirror half of them.

    For any dtype and device; the draws are made on the generator's device.
    among: places of these images in a larger batch and its size: the draws are then the batch's
    """
    if pad < 0:
        raise UserError(f"pad must be 0 or more pixels, got {pad}.")
    n, c, h, w = x.shape
    places, total = among or (slice(None), n)
    down, right, mirror = (drawn[places].to(x.device) for drawn in draws(total, rng, pad))
    rows = torch.arange(h, device=x.device) + down[:, None]
    columns = torch.arange(w, device=x.device).expand(n, w)
    columns = torch.where(mirror[:, None], columns.flip(1), columns) + right[:, None]
    # One gather with a flat index: no window is copied before it is mirrored.
    flat = rows[:, :, None] * (w + 2 * pad) + columns[:, None, :]
    padded = functional.pad(x, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, flat.view(n, 1, h * w).expand(n, c, h * w)).view(n, c, h, w)


def draws(n: int, rng: torch.Generator, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per image: the crop's top row and left column in the padded image, and whether to mirror."""
    corner = torch.randint(0, 2 * pad + 1, (2, n), generator=rng, device=rng.device)
    mirror = torch.randint(0, 2, (n,), generator=rng, device=rng.device).bool()
    return corner[0], corner[1], mirror
