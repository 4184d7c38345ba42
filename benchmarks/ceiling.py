"""How fast a model's attack step could be if nothing but its convolutions took time.

Each convolution of the model alone, forward and gradient of its input, as torch computes it for the
whole batch with all threads, channels-last, in the type that the attack uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from race import Race


@dataclass(frozen=True)
class Ceiling:
    """Seconds and floating-point operations of one step's convolutions."""

    seconds: float
    operations: float

    @property
    def rate(self) -> float:
        return self.operations / self.seconds


def convolution_ceiling(model: nn.Module, x: Tensor, dtype: torch.dtype, race: Race) -> Ceiling:
    seconds, operations = 0.0, 0.0
    measured: dict[str, float] = {}
    for conv, shape, sides in convolutions(model, x):
        key = f"{conv} {tuple(shape)}"
        if key not in measured:
            measured[key] = sum(times(conv, shape, sides, dtype, race))
        seconds += measured[key]
        operations += 2 * work(conv, shape, sides)
    return Ceiling(seconds, operations)


def work(conv: nn.Conv2d, shape: torch.Size, sides: tuple[int, int]) -> float:
    """Floating-point operations of one pass."""
    return 2 * shape[0] * sides[0] * sides[1] * conv.weight.numel() / conv.groups


Used = tuple[nn.Conv2d, torch.Size, tuple[int, int]]


def convolutions(model: nn.Module, x: Tensor) -> list[Used]:
    """Every convolution in the order of use, with the shape it sees and the sides it returns."""
    seen: list[Used] = []

    def note(conv: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        seen.append((conv, given[0].shape, (out.shape[2], out.shape[3])))

    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    handles = [conv.register_forward_hook(note) for conv in convs]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return seen


def times(
    conv: nn.Conv2d, shape: torch.Size, sides: tuple[int, int], dtype: torch.dtype, race: Race
) -> tuple[float, float]:
    """Seconds of the forward pass and of the gradient of the input."""
    last = torch.channels_last
    x = torch.rand(shape).to(dtype, memory_format=last)
    w = conv.weight.detach().to(dtype, memory_format=last)
    g = torch.rand(shape[0], conv.out_channels, *sides).to(dtype, memory_format=last)
    assert isinstance(conv.padding, tuple)
    place = (conv.stride, conv.padding, conv.dilation)

    def forward() -> Tensor:
        return F.conv2d(x, w, None, *place, conv.groups)

    def backward() -> object:
        return torch.ops.aten.convolution_backward(
            g, x, w, None, *place, False, [0, 0], conv.groups, [True, False, False]
        )

    with torch.no_grad():
        best = race({"forward": forward, "backward": backward})
    return best["forward"], best["backward"]
