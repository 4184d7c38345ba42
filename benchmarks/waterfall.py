"""What each step bought, from the authors' code to spat's step, and the machine's roofline.

SPAT's training step with one more idea at a time, in one run, taking turns: the slow twin; clean
logits once a batch; the model's graph in blocks of the batch, which is exact mode; without blocks,
but channels-last; a copy with BatchNorm folded; convolutions that compute what follows them; a
batch laid deep; blocks of it, each with a thread of its own; bfloat16 in the attack; bfloat16 in
the training passes; compiled code. On two cores about five minutes.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from race import Race, Run, apart, from_flags, report
from roofline import layers, machine
from spat.attacks.pgd import PGD
from spat.fast import _deep, surrogate
from spat.training.batches import alone
from spat.training.engine import Engine, sgd
from spat.training.state import State
from step import RESNET, SMALL, Task, twin


def engine(model: nn.Module, **settings: Any) -> Engine:
    return Engine(State(model, sgd(model, lr=0.01)), **settings)


def exact(model: nn.Module) -> Engine:
    return engine(model, exact=True)


def itself(model: nn.Module) -> Engine:
    """Attacked as a whole batch, by its own code."""
    made = exact(model)
    made.exact = None
    return made


def channels_last(model: nn.Module) -> Engine:
    return itself(model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]


def folded(model: nn.Module, *, fuse: bool = False) -> Engine:
    made = engine(model, precision="float32")
    made.copy = surrogate(model, precision="float32", fuse=fuse)
    made.copy.separable = False  # one block
    return made


def flat(model: nn.Module) -> Engine:
    _deep.ENOUGH = sys.maxsize  # in this process alone
    return folded(model, fuse=True)


def laid_deep(model: nn.Module) -> Engine:
    return folded(model, fuse=True)


def in_blocks(model: nn.Module) -> Engine:
    return engine(model, precision="float32")


def low_attack(model: nn.Module) -> Engine:
    made = engine(model, precision="bfloat16")
    made.mixed = False
    return made


def low(model: nn.Module) -> Engine:
    return engine(model, precision="bfloat16")


def compiled(model: nn.Module) -> Engine:
    return engine(model, precision="bfloat16", compile="inductor")


COMPILED = "compiled by inductor (an option)"
STEPS = {
    "clean logits once a batch": itself,
    "its graph, in blocks of the same bits (exact)": exact,
    "channels-last, not in blocks": channels_last,
    "BatchNorm folded": folded,
    "fused and packed convolutions": flat,
    "the batch laid deep": laid_deep,
    "blocks of the batch, a thread each (float32)": in_blocks,
    "attack in bfloat16": low_attack,
    "training passes in bfloat16 (bfloat16)": low,
    COMPILED: compiled,
}


def contender(task: Task, name: str) -> Run:
    (x, y), made = task.batch(), STEPS[name](task.made())
    if made.copy is not None or "channels" in name:
        x = x.contiguous(memory_format=torch.channels_last)
    defence = task.defence()
    return lambda: made.update(defence, alone(x, y), seed=0, step=0, lr=0.01)


def waterfall(task: Task, race: Race) -> tuple[dict[str, float], float]:
    """Seconds of a step of each, and those of the compiler."""
    ideas = {name: (contender, task, name) for name in STEPS}
    with apart({"the authors' way": (twin, task), **ideas}) as runs:
        begun = time.perf_counter()
        runs[COMPILED]()
        waited = time.perf_counter() - begun
        print(f"{task.model}, first compiled step: {waited:.1f} s")
        best = race(runs)
    for name, seconds in best.items():
        speed = best["the authors' way"] / seconds
        print(f"{task.model}  {seconds:7.3f} s  {speed:5.2f}  {name}", flush=True)
    return best, waited


def parted(task: Task, steps: int) -> dict[str, float]:
    """Share of the pixels of x' that are not the twin's after so many steps from one start."""
    from reference.slow_twin import TWINS, craft

    model, (x, y) = task.made(), replace(task, images=(8, *task.images[1:])).batch()
    noise = 0.001 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    place = {"eps": task.eps, "step": task.size, "steps": steps}
    slow = craft(TWINS["spat"], model, x, y, x + noise, **place)
    attack = PGD(eps=task.eps, step_size=task.size, steps=steps, start="normal")
    loss, found = task.defence().inner_loss(), {}
    makers = {"exact": exact, "channels-last": channels_last, "float32 copy": in_blocks}
    for name, make in makers.items():
        images = x if name == "exact" else x.contiguous(memory_format=torch.channels_last)
        made = make(task.made())
        own = made.attacked() if made.exact is None else made.exact.on(images)
        fast = attack.craft(own, images, y, loss=loss, noise=noise)
        found[name] = float(((fast - slow).abs() > task.size / 100).double().mean())
    return found


def main() -> None:
    race = from_flags(__doc__, rounds=2)
    found = {task.model: waterfall(task, race) for task in (RESNET, SMALL)}
    seconds, compiler = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    flips = {str(k): parted(RESNET, k) for k in (1, 10)}
    print(f"pixels that are not the twin's, after so many steps: {flips}")
    often = Race(5, race.cpu_time)
    roof = machine(often)
    print(", ".join(f"{name}: {value:.0f}" for name, value in roof.items()))
    rows = {task.model: layers(task.made(), task.batch()[0], often) for task in (RESNET, SMALL)}
    batch = {task.model: task.images[0] for task in (RESNET, SMALL)}
    report(
        "waterfall",
        race,
        [],
        seconds=seconds,
        compiler_seconds=compiler,
        batch=batch,
        roof=roof,
        layers=rows,
        apart=flips,
    )


if __name__ == "__main__":
    main()
