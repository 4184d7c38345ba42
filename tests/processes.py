"""What the tests of several processes run, alone or as one of two: `python processes.py FOLDER`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import spat
from conftest import Convolutional
from spat.config import Training
from spat.datasets import Images
from spat.training.loop import Trainer
from spat.world import ALONE, World, joined

STEPS = 50
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "madry": ("madry", {}),
    "trades": ("trades", {}),
    "awp": ("awp-trades", {"gamma": 0.01}),
    "free": ("free", {"replays": 3}),
    "gairat": ("gairat", {"begin_epoch": 1}),
    "mail": ("mail-at", {"normalise": "batch", "burn_in": 0}),
}


def images(n: int = 50) -> Images:
    """Images whose class shows in the mean of a channel: learnable in a few steps."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (n,), generator=rng)
    x = 0.3 * torch.rand(n, 2, 8, 8, generator=rng)
    x[:, 0] += 0.15 * y[:, None, None]
    x[:, 1] += 0.15 * (3 - y[:, None, None])
    return Images((x * 255).round().to(torch.uint8), y, ("a", "b", "c", "d"))


def trainer(case: str, world: World = ALONE, folder: Path | None = None, **more: Any) -> Trainer:
    """BatchNorm, dropout, augmentation, an average; batches of 12 and 13, so shares of 6 and 7."""
    name, own = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Convolutional()
    settings = {"epochs": 13, "batch_size": 16, "lr": 0.05, "schedule": "constant", "ema": 0.9}
    defence = spat.defence(name, **own, **{"attack.steps": 2})
    data = images()
    return Trainer(
        model,
        data,
        data[:9],
        defence,
        Training(**{**settings, "precision": "float32", "validation_images": 9, **more}),
        augment=True,
        folder=folder,
        world=world,
    )


def curve(subject: Trainer, steps: int = STEPS) -> dict[str, Any]:
    """The loss of each of the first steps, and the weights, statistics and average after them."""
    losses = []
    for _ in range(steps):
        before = dict(subject.counters.sums)
        list(subject._train_one())
        losses.append(subject.counters.sums["loss"] - before.get("loss", 0.0))
    state = {f"model.{k}": v for k, v in subject.model.state_dict().items()}
    state |= {f"average.{k}": v for k, v in subject.state.judged().items()}
    return {"losses": losses, "state": state, "held": subject._validate()}


def launch(folder: Path, command: Sequence[str], size: int = 2) -> list[subprocess.Popen[str]]:
    """Start a command as each of `size` processes that know of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    source = str(Path(spat.__file__).parents[1])
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def main(folder: Path) -> None:
    with joined() as world:
        for case in CASES:
            torch.save(curve(trainer(case, world)), folder / f"{case}-{world.rank}.pt")
        unsynced = curve(trainer("madry", world, sync_batchnorm=False))
        torch.save(unsynced, folder / f"unsynced-{world.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
