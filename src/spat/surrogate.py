"""A copy of a model to attack in its place: eval mode, channels last, bfloat16 where that is fast.

The inner attack is nearly the whole cost of adversarial training, and it only needs gradients with
respect to the input: the copy's parameters ask for none. Its logits and the gradients of its input
come in the type of the input, so that losses and steps are never computed in low precision.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from spat.errors import UserError


class Surrogate(nn.Module):
    """Computes what `model` computes in eval mode; `refresh` takes over its weights."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inside = copy.deepcopy(model).eval().requires_grad_(False)
        self.inside.to(dtype=dtype)
        self.inside.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        z: Tensor = self.inside(x.to(self.dtype, memory_format=layout))
        return z.to(x.dtype)

    @torch.no_grad()
    def refresh(self, model: nn.Module) -> None:
        """Copy weights and running statistics into the same storage."""
        mine, theirs = self.inside.state_dict(), model.state_dict()
        torch._foreach_copy_(list(mine.values()), [theirs[name] for name in mine])


def surrogate(model: nn.Module) -> Surrogate | None:
    """A bfloat16 copy, or None for a model that cannot be copied or is not in float32."""
    if any(p.dtype != torch.float32 for p in model.parameters()):
        return None
    try:
        return Surrogate(model, torch.bfloat16)
    except Exception:  # whatever a user's own model raises when it is copied
        return None


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """What a setting of precision means on this device."""
    if precision not in ("auto", "float32", "bfloat16"):
        raise UserError(f"precision must be auto, float32 or bfloat16, got {precision!r}.")
    return precision == "bfloat16" or (precision == "auto" and fast_bfloat16(device))


def fast_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 itself; emulated, it is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
