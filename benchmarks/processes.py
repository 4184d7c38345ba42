"""Claims: two processes are nearly twice as fast as one, and have its loss curve.

Speed: SPAT, K = 10, ResNet-18, 128 images a step in all, as by default, each process on one thread.
Teams of one and of two take turns, and the best turn of each counts; two processes that share
nothing tell what the machine can do at all. Curve: 50 steps of SPAT on embedded digits, a narrow
ResNet-18, BatchNorm over the whole batch, attacked exactly, in float64: there, a gap would be a
mistake. In float32 rounding alone parts the curves of such a run, as the two other numbers say: the
gap of two processes, and that of one process to itself with each batch in another order.
What the cost model of scale.py predicts for two processes is printed beside what they took.
Run: make bench, or this file alone. On two cores about four minutes.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import spat
from race import Claim, from_flags, report
from scale import Machine, cost, counted, seconds
from spat.models import build_model
from spat.training.batches import Batch
from spat.training.engine import Engine, sgd
from spat.training.state import State
from spat.world import World
from team import MEMBER, Team, serve

STEPS, LR = 50, 0.01
SPEED = {"batch": 128, "steps": 10, "fewer": 3, "side": 32}
CURVE, WIDTH = {"batch": 16, "steps": 2}, 0.125
LARGE, SMALL = 8 << 20, 64  # numbers in a message whose speed, whose delay is measured


@dataclass
class Work:
    """Updates of one model, each on this process's share of a batch."""

    engine: Engine
    attack: dict[str, Any]
    done: int = 0

    def step(self, x: Tensor, y: Tensor, places: Tensor) -> float:
        """x, y: the whole batch. places: what each of its rows draws its random numbers by"""
        world, n = self.engine.world, len(x)
        batch = Batch(world.mine(x), world.mine(y), world.mine(places), n)
        defence = spat.defence("spat", **{f"attack.{k}": v for k, v in self.attack.items()})
        self.done += 1
        return self.engine.update(defence, batch, seed=0, step=self.done, lr=LR)["loss"]


def work(world: World, *, attack: dict[str, Any], double: bool = False, **model: Any) -> Work:
    net = build_model("resnet18", seed=0, head="cosine", **model)
    state = State(net.double() if double else net, sgd(net, lr=LR))
    return Work(Engine(state, world=world, exact="width" in model), attack)


class Member:
    """What one process of a team answers."""

    def __init__(self) -> None:
        self.speed: dict[int, Work] = {}

    def __call__(self, world: World, words: list[str]) -> Any:
        what, *rest = words
        if what == "step":
            return self._step(world, int(rest[0]))
        return self._sum(world, int(rest[0])) if what == "sum" else self._curve(world, *rest)

    def _step(self, world: World, steps: int) -> float:
        n, side = SPEED["batch"], SPEED["side"]
        if steps not in self.speed:
            self.speed[steps] = work(world, attack={"steps": steps})
        rng = torch.Generator().manual_seed(0)
        x, y = torch.rand(n, 3, side, side, generator=rng), torch.randint(10, (n,), generator=rng)
        return self.speed[steps].step(x, y, torch.arange(n))

    def _sum(self, world: World, numbers: int, times: int = 20) -> float:
        """Best seconds of a sum of so many numbers over the processes."""
        found = []
        for _ in range(times):
            begun = time.perf_counter()
            world.total(torch.ones(numbers))
            found.append(time.perf_counter() - begun)
        return min(found[2:])

    def _curve(self, world: World, dtype: str, order: str) -> list[float]:
        data, n, double = spat.data("mnist-mini").train, CURVE["batch"], dtype == "float64"
        attack = {"steps": CURVE["steps"], "eps": 0.3, "step_size": 0.1}
        subject = work(world, attack=attack, double=double, channels=1, width=WIDTH)
        places = torch.arange(n) if order == "given" else torch.arange(n).flip(0)
        losses = []
        for step in range(STEPS):
            x, y = data.floats(step * n + places)
            losses.append(subject.step(x.double() if double else x, y, places))
        return losses


def gap(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def predictions(taken: float, delay: float, bandwidth: float) -> dict[str, Any]:
    """Of the cost model, which knows what a step of one process took and how messages travel."""
    side, steps, fewer = SPEED["side"], SPEED["steps"], SPEED["fewer"]
    net = counted(build_model("resnet18", seed=0), (3, side, side))
    of, less = (cost(net, images=SPEED["batch"], steps=k, passes=2) for k in (steps, fewer))
    machine = Machine(of.operations / taken, bandwidth, lambda processes: delay)
    return {
        "cost": asdict(of),
        "predicted": {"2": seconds(of, machine, 2).total, "fewer": seconds(less, machine, 1).total},
        "rate": machine.rate,
        "delay": delay,
        "bandwidth": bandwidth,
    }


def apart(one: Team, other: Team) -> None:
    """Each of two processes makes the whole step: what this machine has to give to two."""
    for team in (one, other):
        team.tell("step", SPEED["steps"])
    for team in (one, other):
        team.hear()


def main() -> None:
    race, steps, fewer = from_flags(__doc__, rounds=2), SPEED["steps"], SPEED["fewer"]
    with Team(1, __file__) as one, Team(1, __file__) as other, Team(2, __file__) as two:
        best = race(
            {
                "1": lambda: one.ask("step", steps),
                "2": lambda: two.ask("step", steps),
                "apart": lambda: apart(one, other),
                "fewer": lambda: one.ask("step", fewer),
            }
        )
        print(", ".join(f"{name}: {taken:.3g} s" for name, taken in best.items()), flush=True)
        sums = {n: max(two.ask("sum", n)) for n in (SMALL, LARGE)}
        double = gap(*(team.ask("curve", "float64", "given")[0] for team in (one, two)))
        first, single = (team.ask("curve", "float32", "given")[0] for team in (one, two))
        [turned] = one.ask("curve", "float32", "turned")
    capacity = 2 * best["1"] / best["apart"]
    print(f"two processes that know nothing of each other: {capacity:.2f} times the work of one")
    claims = [
        Claim("2 processes of a thread against 1: images a second", best["1"] / best["2"], 1.8),
        Claim("1e-4 over the largest gap of 50 losses of 2 and of 1", 1e-4 / max(double, 1e-16), 1),
    ]
    model = predictions(best["1"], sums[SMALL], 4 * LARGE / sums[LARGE])
    for name in ("2", "fewer"):
        print(f"a step, {name}: {best[name]:.3g} s, predicted {model['predicted'][name]:.3g} s")
    gaps = {"float64": double, "float32": gap(first, single), "float32-turned": gap(first, turned)}
    print("gaps of 50 losses:", ", ".join(f"{name} {value:.2g}" for name, value in gaps.items()))
    report(
        "processes", race, claims, task=SPEED, seconds=best, capacity=capacity, **model, gaps=gaps
    )


if __name__ == "__main__":
    if MEMBER in sys.argv:
        serve(Member())
    else:
        main()
