"""Claim: on a GPU too a training step costs a fraction of what the published codes' step costs.

SPAT on ResNet-18 with K = 10, images a second: the slow twin, the fast copy as Python calls it, as
CUDA graphs and as compiled code; and whether they compute the same. Needs a GPU; about 90 seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import spat
from race import Race, Run, from_flags, report
from spat.attacks.pgd import PGD
from spat.fast import Compile, surrogate
from step import RESNET, Task

MODES: dict[str, dict[str, Any]] = {
    "exact": {"exact": True},
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
    "bfloat16, cuda-graphs": {"precision": "bfloat16", "compile": "cuda-graphs"},
    "bfloat16, inductor": {"precision": "bfloat16", "compile": "inductor"},
}
BATCHES = (128, 512)
ENOUGH = 75  # seconds after which nothing more is compiled


def on_gpu(task: Task) -> tuple[nn.Module, Tensor, Tensor]:
    x, y = task.batch()
    return task.made().cuda(), x.cuda(), y.cuda()


def twin(task: Task) -> Run:
    from reference.slow_twin import TWINS, craft, update
    from spat.training.engine import sgd

    model, x, y = on_gpu(task)
    optimiser, own = sgd(model, lr=0.01), TWINS["spat"]
    place = {"eps": task.eps, "step": task.size, "steps": task.steps}

    def run() -> None:
        start = x + 0.001 * torch.randn(x.shape).to(x)
        update(own, model, optimiser, x, y, craft(own, model, x, y, start, **place))

    return run


def waited(run: Run) -> Run:
    def both() -> None:
        run()
        torch.cuda.synchronize()

    return both


def step(task: Task, settings: dict[str, Any]) -> Callable[[], float]:
    model, x, y = on_gpu(task)
    one = spat.step(model, task.defence(), lr=0.01, **settings)
    return lambda: one(x, y)


def speeds(task: Task, race: Race, began: float) -> dict[str, float]:
    """Images a second of each, best of the rounds."""
    found = {}
    runs: dict[str, Callable[[], Run]] = {"twin": lambda: twin(task)}
    for name, settings in MODES.items():
        runs[name] = lambda settings=settings: step(task, settings)  # type: ignore[misc]
    for name, make in runs.items():
        if name.endswith("inductor") and time.perf_counter() - began > ENOUGH:
            print(f"batch {task.images[0]}, {name}: left out, time is up")
            continue
        begun = time.perf_counter()
        try:
            run = waited(make())
            run()
        except Exception as error:  # of a compiler, whatever it raises
            print(f"batch {task.images[0]}, {name}: fails: {str(error).splitlines()[0]}")
            continue
        first = time.perf_counter() - begun
        found[name] = task.images[0] / race({name: run})[name]
        print(
            f"batch {task.images[0]}, {name}: {found[name]:.0f} images/s, "
            f"{found[name] / found['twin']:.2f} of the twin; first step {first:.1f} s",
            flush=True,
        )
        torch.cuda.empty_cache()
    return found


def agreement(task: Task) -> dict[str, float]:
    """How far copies are from the model, and recorded passes from the same passes as called."""
    model, x, y = on_gpu(task)
    model.eval()
    with torch.no_grad():
        z = model(x)
        off = {
            f"logits, {precision}": float(
                (surrogate(model, precision=precision)(x) - z).abs().max() / z.abs().max()
            )
            for precision in ("float32", "bfloat16")
        }
    attack = PGD(eps=task.eps, step_size=task.size, steps=task.steps, start="normal")
    loss = task.defence().inner_loss()

    def crafted(compile: Compile) -> Tensor:
        copy = surrogate(model, precision="bfloat16", compile=compile)
        attack.craft(copy, x.flip(0), y.flip(0), rng=1, loss=loss)  # what a graph holds is old then
        return attack.craft(copy, x, y, rng=0, loss=loss)

    called = crafted("off")
    again = float((crafted("off") != called).double().mean())
    off["pixels that two runs as called do not share"] = again
    played = float((crafted("cuda-graphs") != called).double().mean())
    off["pixels that cuda-graphs do not share"] = played
    graphs, plain = (
        [run() for _ in range(5)]
        for run in (step(task, MODES["bfloat16, cuda-graphs"]), step(task, MODES["bfloat16"]))
    )
    off["loss after 5 steps, cuda-graphs against as called"] = abs(graphs[-1] / plain[-1] - 1)
    return off


def main() -> None:
    race, began = from_flags(__doc__, rounds=5), time.perf_counter()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py measures a GPU, and torch sees none.")
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    off = agreement(replace(RESNET, images=(128, 3, 32, 32)))
    for name, value in off.items():
        print(f"{name}: {value:.2g}", flush=True)
    speed = {}
    for n in BATCHES:
        speed[str(n)] = speeds(replace(RESNET, images=(n, 3, 32, 32)), race, began)
    torch.backends.cudnn.benchmark = True
    for n in BATCHES:
        task = replace(RESNET, images=(n, 3, 32, 32))
        run = waited(step(task, MODES["bfloat16, cuda-graphs"]))
        speed[str(n)]["graphs, cudnn.benchmark"] = found = n / race({"": run})[""]
        print(f"batch {n}, cuda-graphs with cudnn.benchmark: {found:.0f} images/s", flush=True)
    report("gpu", race, [], images_a_second=speed, off=off, gpu=torch.cuda.get_device_name())
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
