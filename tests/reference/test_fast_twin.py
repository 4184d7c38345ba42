"""The fast path against the slow twin: the same x', the same losses, step after step.

In exact mode it is so in float32. The folded copy rounds otherwise than the model: a sign turns
where the gradient is all but zero, its pixel moves elsewhere, and the two part. That they compute
the same is shown in float64, where no gradient is so small.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spat
from reference.slow_twin import TWINS, craft, update
from spat.defences._base import Defence
from spat.models import build_model, renormalise_heads
from spat.rng import generator, global_seed, normal, uniform
from spat.training.batches import alone
from spat.training.engine import Engine, sgd
from spat.training.state import State

CPU = torch.device("cpu")
STEPS, BATCH = 20, 4
FLIPS = 1e-4  # share of pixels whose gradient is so near zero that rounding decides its sign
JUDGED = 300  # test images
SETTINGS = {"lr": 0.01, "momentum": 0.9, "weight_decay": 2e-4}


@dataclass(frozen=True)
class Case:
    name: str
    settings: dict[str, float]
    channels: int
    eps: float
    step: float


CASES = [
    Case("small-cnn", {"size": 16}, 1, 0.3, 0.05),
    Case("resnet18", {"width": 0.125}, 3, 8 / 255, 2 / 255),
]


def made(case: Case, name: str) -> tuple[nn.Module, Defence]:
    attack = {"attack.eps": case.eps, "attack.step_size": case.step, "attack.steps": 4}
    head = "cosine" if name == "spat" else "linear"
    model = build_model(case.name, seed=0, head=head, channels=case.channels, **case.settings)
    return model.train(), spat.defence(name, **attack)


def start(name: str, x: Tensor, eps: float, step: int) -> Tensor:
    """The first iterate, from the numbers that training draws for this step."""
    rng = alone(x, x).source(0, "attack", step)
    if name == "madry":
        return (x + (2 * uniform(rng, x) - 1) * eps).clamp(0.0, 1.0)
    return x + 0.001 * normal(rng, x)


class Pair:
    """A model trained by the slow twin and its copy trained by the engine, on the same batches."""

    def __init__(self, case: Case, name: str, dtype: torch.dtype, *, exact: bool) -> None:
        model, self.defence = made(case, name)
        self.case, self.name = case, name
        self.slow, self.fast = model.to(dtype), copy.deepcopy(model).to(dtype)
        self.optimiser = sgd(self.slow, **SETTINGS)
        state = State(self.fast, sgd(self.fast, **SETTINGS))
        self.engine = Engine(state, precision="float32", exact=exact)
        self.flips = 0.0

    def step(self, step: int) -> tuple[float, float]:
        """The losses of the twin and of the engine; dropout draws the same masks in both."""
        case, twin, (x, y) = self.case, TWINS[self.name], self.batch(step)
        attack = {"eps": case.eps, "step": case.step, "steps": self.defence.attack.steps}
        x_slow = craft(twin, self.slow, x, y, start(self.name, x, case.eps, step), **attack)
        rng = alone(x, y).source(0, "attack", step)
        x_fast = self.defence.craft(self.attacked(x), x, y, rng=rng).x_adv
        assert x_fast is not None
        self.flips += float(((x_fast - x_slow).abs() > 1e-5).double().mean()) / STEPS
        with global_seed(CPU, 0, "forward", step):
            slow = update(twin, self.slow, self.optimiser, x, y, x_slow)
        renormalise_heads(self.slow)
        batch = alone(x, y)
        means = self.engine.update(self.defence, batch, seed=0, step=step, lr=SETTINGS["lr"])
        return slow, means["loss"]

    def attacked(self, x: Tensor) -> nn.Module:
        exact = self.engine.exact
        return self.engine.attacked() if exact is None else exact.on(x)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        rng = generator("batch", step)
        x = torch.rand(BATCH, self.case.channels, 16, 16, generator=rng)
        like = next(self.slow.parameters())
        return x.to(like), torch.randint(10, (BATCH,), generator=rng)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_engine_equals_the_slow_twin(case: Case, name: str, mode: str) -> None:
    dtype = torch.float32 if mode == "exact" else torch.float64
    pair = Pair(case, name, dtype, exact=mode == "exact")
    assert (pair.engine.copy is None) == (mode == "exact")
    losses = [pair.step(step) for step in range(STEPS)]
    assert pair.flips <= FLIPS
    for slow, fast in losses:
        assert fast == pytest.approx(slow, rel=1e-5)
    assert losses[-1][0] != losses[0][0]


def test_exact_mode_equals_the_twin_in_blocks(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch large enough for two threads, wherever a half gives the bits of the whole."""
    monkeypatch.setattr(sys.modules[__name__], "BATCH", 64)
    pair = Pair(CASES[1], "spat", torch.float32, exact=True)
    losses = [pair.step(step) for step in range(5)]
    assert pair.flips == 0.0
    for slow, fast in losses:
        assert fast == pytest.approx(slow, rel=1e-6)


@pytest.mark.slow
def test_bfloat16_trains_models_as_robust() -> None:
    """Over three seeds, the difference of the means is within three of its standard errors."""
    low, high = (np.array([robust(p, seed) for seed in range(3)]) for p in ("bfloat16", "float32"))
    spread = np.sqrt((low.var(ddof=1) + high.var(ddof=1)) / 3)
    noise = np.sqrt(2 * high.mean() * (1 - high.mean()) / (3 * JUDGED))  # of so few test images
    assert high.mean() > 0.3
    assert abs(low.mean() - high.mean()) < 3 * max(spread, noise)


def robust(precision: str, seed: int) -> float:
    """Accuracy under PGD of a small model after a short training."""
    splits = spat.data("mnist-mini")
    x, y = splits.train[:1000].floats()
    model = spat.model("lenet5", seed=seed)
    defence = spat.defence("madry", **{"attack.eps": 0.05, "attack.steps": 3})
    settings = {"epochs": 3, "batch_size": 32, "lr": 0.1, "schedule": "one-cycle", "validation": 0}
    spat.train(model, x, y, defence=defence, seed=seed, precision=precision, **settings)
    x, y = splits.test[:JUDGED].floats()
    return spat.evaluate(model, x, y, "pgd-10", eps=0.05).accuracy("pgd-10")
