"""Claim: a training step costs a fraction of what the published codes' step costs.

SPAT's training step against the slow twin (tests/reference/slow_twin.py), the literal algorithm in
eager NCHW float32, on the same batch and the same cores; and the attack step alone against the
model's convolutions alone. `exact` is the mode whose iterates are the twin's to the bit.
Run: make bench, or this file alone. On two cores about four minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import spat
from ceiling import convolution_ceiling
from race import Claim, Race, Run, apart, from_flags, report
from spat.attacks.pgd import PGD
from spat.fast import has_fast_bfloat16, surrogate
from spat.models import build_model
from spat.training.engine import sgd


@dataclass(frozen=True)
class Task:
    model: str
    images: tuple[int, int, int, int]
    steps: int
    eps: float
    size: float

    def made(self) -> nn.Module:
        return build_model(self.model, seed=0, head="cosine")

    def batch(self) -> tuple[Tensor, Tensor]:
        rng = torch.Generator().manual_seed(0)
        labels = torch.randint(10, self.images[:1], generator=rng)
        return torch.rand(self.images, generator=rng), labels

    def defence(self) -> Any:
        attack = {"steps": self.steps, "eps": self.eps, "step_size": self.size}
        return spat.defence("spat", **{f"attack.{key}": value for key, value in attack.items()})


RESNET = Task("resnet18", (64, 3, 32, 32), steps=10, eps=8 / 255, size=2 / 255)
SMALL = Task("small-cnn", (128, 1, 28, 28), steps=40, eps=0.3, size=0.01)


def twin(task: Task) -> Run:
    from reference.slow_twin import TWINS, craft, update

    model, (x, y), own = task.made(), task.batch(), TWINS["spat"]
    optimiser = sgd(model, lr=0.01)
    place = {"eps": task.eps, "step": task.size, "steps": task.steps}

    def run() -> None:
        start = x + 0.001 * torch.randn(x.shape)
        update(own, model, optimiser, x, y, craft(own, model, x, y, start, **place))

    return run


def ours(task: Task, settings: dict[str, Any]) -> Run:
    step, (x, y) = spat.step(task.made(), task.defence(), lr=0.01, **settings), task.batch()
    return lambda: step(x, y)


MODES: dict[str, dict[str, Any]] = {
    "exact": {"exact": True},
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
}


def raced(task: Task, race: Race) -> dict[str, float]:
    """The best seconds of the twin and of each mode, each in a process of its own."""
    modes = {name: (ours, task, settings) for name, settings in MODES.items()}
    with apart({"twin": (twin, task), **modes}) as runs:
        return race(runs)


def attack_step(task: Task, race: Race, dtype: torch.dtype) -> float:
    """Seconds of one step more of the inner attack."""
    model, (x, y) = surrogate(task.made(), precision=_name(dtype)), task.batch()

    def attack(steps: int) -> Run:
        run = PGD(eps=task.eps, step_size=task.size, steps=steps, start="normal")
        return lambda: run.craft(model, x, y, rng=0)

    best = race({"many": attack(9), "few": attack(1)})
    return max(best["many"] - best["few"], math.ulp(0.0)) / 8


def _name(dtype: torch.dtype) -> Any:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    race = from_flags(__doc__, rounds=3)
    best = {task.model: raced(task, race) for task in (RESNET, SMALL)}
    ratio = {name: {k: own["twin"] / v for k, v in own.items()} for name, own in best.items()}
    dtype = torch.bfloat16 if has_fast_bfloat16("cpu") else torch.float32
    x, _ = RESNET.batch()
    ceiling = convolution_ceiling(RESNET.made(), x, dtype, race)
    seconds = attack_step(RESNET, race, dtype)
    resnet, small = ratio["resnet18"], ratio["small-cnn"]
    top, step = "ResNet-18, batch 64, K = 10", f"{_name(dtype)} attack step, ResNet-18"
    claims = [
        Claim(f"{top}: exact float32, the twin's iterates", resnet["exact"], 1.7),
        Claim(f"{top}: float32 on the copy, against the slow twin", resnet["float32"], 1.7),
        Claim(f"{top}: bfloat16 against the slow twin", resnet["bfloat16"], 3.5),
        Claim(f"{step}: share of its convolutions' speed alone", ceiling.seconds / seconds, 0.8),
        Claim(
            "SmallCNN, batch 128, K = 40: bfloat16 against the slow twin", small["bfloat16"], 5.0
        ),
    ]
    for name, held in best.items():
        told = ", ".join(f"{mode} {seconds:.3g} s" for mode, seconds in held.items())
        print(f"a step of {name}: {told}")
    print(f"the convolutions alone: {ceiling.rate / 1e9:.0f} GFLOP/s")
    report("step", race, claims, seconds=best, ceiling_gflops=ceiling.rate / 1e9)


if __name__ == "__main__":
    main()
