"""What the tests of several processes run, alone or as one of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spat
from conftest import Convolutional
from spat.config import Training
from spat.datasets import Images
from spat.errors import UserError
from spat.training.batches import Batch
from spat.training.loop import Trainer
from spat.world import ALONE, World, joined

STEPS = {"madry": 50}  # of the others 20
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "madry": ("madry", {}),
    "trades": ("trades", {}),
    "awp": ("awp-trades", {"gamma": 0.01}),
    "free": ("free", {"replays": 3}),
    "gairat": ("gairat", {"begin_epoch": 1}),
    "mail": ("mail-at", {"normalise": "batch", "burn_in": 0}),
    "phases": ("free", {"replays": 3}),
    "unsynced": ("madry", {}),
    "parts-awp": ("awp-trades", {"gamma": 0.01}),
    "parts-gairat": ("gairat", {"begin_epoch": 1}),
}
# Images of 4, then of 8 pixels a side, from an epoch within the first 20 steps on.
PHASES: dict[str, Any] = {"image_scales": (0.5, 1.0), "image_milestones": (2,)}
# Where KL is climbed from a start close to x, its first gradients are differences of nearly equal
# numbers: rounding decides some signs, and float32 curves part. Equality is then shown in float64.
DOUBLE = ("trades", "awp", "parts-awp")


def images(n: int = 50) -> Images:
    """Images whose class shows in the mean of a channel: learnable in a few steps."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (n,), generator=rng)
    x = 0.3 * torch.rand(n, 2, 8, 8, generator=rng)
    x[:, 0] += 0.15 * y[:, None, None]
    x[:, 1] += 0.15 * (3 - y[:, None, None])
    return Images((x * 255).round().to(torch.uint8), y, ("a", "b", "c", "d"))


class Double(Trainer):
    """Trains in float64, which no setting asks for; not by the fast copy, which is tried first."""

    def __post_init__(self) -> None:
        self.model.double()
        super().__post_init__()

    def _batch(self, epoch: int, position: int, step: int) -> Batch:
        batch = super()._batch(epoch, position, step)
        return replace(batch, x=batch.x.double())


def trainer(case: str, world: World = ALONE, folder: Path | None = None, **more: Any) -> Trainer:
    """BatchNorm, dropout, augmentation, an average; batches of 12 and 13, so shares of 6 and 7."""
    name, own = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Convolutional()
    settings: dict[str, Any] = {"epochs": 13, "batch_size": 16, "lr": 0.05, "ema": 0.9}
    settings |= {"schedule": "constant", "precision": "float32", "validation_images": 9}
    if case.startswith("parts"):  # of 5 or 4 images, whoever has them
        settings |= {"micro_batch": 6 // world.size}
    settings |= {"sync_batchnorm": case != "unsynced", "exact": case in DOUBLE}
    settings |= PHASES if case == "phases" else {}
    data = images()
    return (Double if case in DOUBLE else Trainer)(
        model,
        data,
        None if case in DOUBLE else data[:9],
        spat.defence(name, **own, **{"attack.steps": 2}),
        Training(**settings, **more),
        augment=True,
        folder=folder,
        world=world,
    )


def curve(case: str, world: World = ALONE) -> dict[str, Any]:
    """The loss of each of the first steps, and all that is left of the run after them."""
    subject, losses = trainer(case, world), []
    for _ in range(STEPS.get(case, 20)):
        before, seen = subject.counters.sums.get("loss", 0.0), subject.counters.seen
        list(subject._train_one())
        n = subject.counters.seen - seen
        losses.append((subject.counters.sums["loss"] - before) / n)
    state = {f"model.{k}": v for k, v in subject.model.state_dict().items()}
    state |= {f"average.{k}": v for k, v in subject.state.judged().items()}
    return {"losses": losses, "state": state, "held": vars(subject._validate() or ALONE)}


def shares(world: World) -> list[tuple[list[int], int]]:
    """The images of each batch of an epoch that this process holds, found by their pixels."""
    subject = trainer("madry", world)
    subject.augment = False
    known = {bytes(x.tolist()): i for i, x in enumerate(subject.train.x.flatten(1))}
    batches = [subject._batch(0, position, position) for position in range(subject.batches)]
    bytes_of = [(255 * b.x).round().to(torch.uint8).flatten(1) for b in batches]
    return [
        ([known[bytes(x.tolist())] for x in rows], batch.n)
        for rows, batch in zip(bytes_of, batches, strict=True)
    ]


class Dazzled(Convolutional):
    """In evaluation mode the logits of a white image are no numbers."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        white = x.amin((1, 2, 3)) > 0.9
        return z if self.training else z.masked_fill(white[:, None], torch.nan)


def dazzled(world: World = ALONE) -> tuple[list[str], str]:
    """What a run says in which the attack fails on the share of one process, and its end."""
    data = images()
    data.x[30] = 255
    settings = Training(epochs=3, batch_size=16, guard="rollback", exact=True)
    defence = spat.defence("madry", **{"attack.steps": 2})
    subject, said = Trainer(Dazzled(), data, None, defence, settings, world=world), []
    try:
        for event in subject.run():
            said += [event.values["text"]] if event.kind == "note" else []
    except UserError as error:
        return said, str(error)
    return said, ""


def launch(
    folder: Path, command: Sequence[str], size: int = 2, *, elsewhere: Path | None = None
) -> list[subprocess.Popen[str]]:
    """Start a command of Python's as each of `size` processes that know of each other.

    elsewhere: the folder of the last one, as if it were on another machine
    """
    folders = [*[folder] * (size - 1), elsewhere or folder]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(spat.__file__).parents[1])}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folders[rank],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(running: list[subprocess.Popen[str]], seconds: float = 60) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; none outlives the test."""
    try:
        said = [process.communicate(timeout=seconds) for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return [(p.returncode, *texts) for p, texts in zip(running, said, strict=True)]


def main(folder: Path) -> None:
    with joined() as world:
        found: dict[str, Any] = {case: curve(case, world) for case in CASES}
        found |= {"shares": shares(world), "dazzled": dazzled(world)}
        torch.save(found, folder / f"{world.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
