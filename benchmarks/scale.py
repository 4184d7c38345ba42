"""What a training step costs and says to other processes, counted; how long it takes, predicted.

    operations = n F ( 1 + 2 K + 3 m )     clean logits, K steps of attack, m training passes
    seconds    = operations / (p R)  +  2 (p - 1) / p * 4 P / B  +  (2 m N + A) L(p)

n images a step, F operations of a forward pass, K inner steps, m 1 or 2 (SPAT: 2), p processes,
R operations a second of one of them, P parameters, B bytes a second of a sum between processes,
N BatchNorm layers (each sums once forwards and once backwards in each training pass), A messages
on which all agree (stop or save, whether the attack went well, the loss), L seconds of a small one.
A pass back costs as much as one forward for each of the two gradients, of inputs and of weights.
Nothing is taken to overlap, though gradients are summed while others are computed: seconds are a
little too many. What it leaves out: reading data, slower processes that the others wait for.

Run by itself on a machine with a GPU, this file measures R there and keeps it in results/.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import spat
from spat.models import build_model

COUNTED = (nn.Conv2d, nn.Linear)
AGREEMENTS = 3  # messages of a step besides gradients and statistics
IMAGENET, SIDE = 1_281_167, 56  # training images; the side of what the stem hands on
STEM = 2 * 7 * 7 * 3 * 64 * 112 * 112  # operations of the first layer, of ImageNet's ResNet-50
OUR_STEM = 2 * 3 * 3 * 3 * 64 * SIDE * SIDE  # and of ours, on images of that side


@dataclass(frozen=True)
class Network:
    """operations: of a forward pass of one image. norms: channels of each BatchNorm layer"""

    operations: float
    parameters: int
    norms: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """Of a step, all processes together; messages and bytes as each process has them."""

    operations: float
    gradients: int  # bytes
    messages: int
    statistics: int  # bytes
    checkpoint: int  # bytes, by the first process


@dataclass(frozen=True)
class Machine:
    """rate: operations a second of a process. bandwidth: bytes a second. latency: by processes"""

    rate: float
    bandwidth: float
    latency: Callable[[int], float]


@dataclass(frozen=True)
class Seconds:
    """Of a step."""

    computing: float
    gradients: float
    messages: float

    @property
    def total(self) -> float:
        return self.computing + self.gradients + self.messages


def counted(model: nn.Module, shape: Sequence[int]) -> Network:
    """What a model's convolutions and linear layers do for one image of this shape."""
    operations = 0

    def count(module: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        nonlocal operations
        assert isinstance(module, COUNTED)
        operations += 2 * module.weight.numel() * math.prod(out.shape[2:])

    parts = list(model.modules())
    handles = [m.register_forward_hook(count) for m in parts if isinstance(m, COUNTED)]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape, device=next(model.parameters()).device))
    for handle in handles:
        handle.remove()
    norms = tuple(m.num_features for m in parts if isinstance(m, _BatchNorm))
    return Network(operations, sum(p.numel() for p in model.parameters()), norms)


def forwards(steps: int, passes: int) -> int:
    """By how many forward passes an image's share of a step costs."""
    return 1 + 2 * steps + 3 * passes


def cost(net: Network, *, images: int, steps: int, passes: int, sync: bool = True) -> Cost:
    """Of one step on so many images, with so many steps of attack and training passes."""
    statistics = sum((2 * c + 1) * 8 + 2 * c * 4 for c in net.norms)  # doubles there, floats back
    return Cost(
        operations=images * net.operations * forwards(steps, passes),
        gradients=4 * net.parameters,
        messages=AGREEMENTS + (2 * passes * len(net.norms) if sync else 1),
        statistics=passes * statistics if sync else 8 * sum(net.norms),
        # Weights, momentum and the best weights; beside it the files of last and best weights.
        checkpoint=5 * 4 * net.parameters,
    )


def seconds(of: Cost, machine: Machine, processes: int) -> Seconds:
    several = processes > 1
    sent = 2 * (processes - 1) / processes * (of.gradients + of.statistics)
    return Seconds(
        computing=of.operations / (processes * machine.rate),
        gradients=sent / machine.bandwidth,
        messages=several * of.messages * machine.latency(processes),
    )


def imagenet_resnet50() -> Network:
    """Ours, after its stem, is the one that ImageNet is trained with, after its own."""
    with torch.device("meta"):
        model = build_model("resnet50", seed=0, classes=1000)
    ours = counted(model, (3, SIDE, SIDE))
    return Network(ours.operations - OUR_STEM + STEM, ours.parameters, ours.norms)


def measure_gpu(batches: Sequence[int] = (64, 256)) -> dict[str, float]:
    """Best seconds of a SPAT step, K = 10, of ResNet-50 on what its stem hands on, by batch."""
    best = {}
    for batch in batches:
        model = build_model("resnet50", seed=0, classes=1000, head="cosine").cuda()
        x = torch.rand(batch, 3, SIDE, SIDE, device="cuda")
        y = torch.randint(1000, (batch,), device="cuda")
        step = spat.step(model, spat.defence("spat"), lr=0.01)
        turns = [_timed(step, x, y) for _ in range(6)]
        best[str(batch)] = min(turns[2:])
    return best


def _timed(step: Callable[[Tensor, Tensor], float], x: Tensor, y: Tensor) -> float:
    begun = time.perf_counter()
    step(x, y)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


if __name__ == "__main__":
    from race import RESULTS
    from spat.results import write_json

    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "task": f"SPAT, K = 10, ResNet-50 on {SIDE}x{SIDE} images, 1000 classes, bfloat16",
        "seconds": measure_gpu(),
    }
    write_json(RESULTS / "scale-gpu.json", facts)
    print(facts)
