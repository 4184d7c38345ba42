"""Killed at random moments and resumed each time, a run ends exactly as if it had not been."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spat import tensorfile

KILLING = Path(__file__).with_name("killing.py")
MODEL = """
import spat
from torch import nn

def make(classes, channels, head="linear"):
    last = spat.CosineHead(6, classes, scale=5) if head == "cosine" else nn.Linear(6, classes)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), last,
    )
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them"),
]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A run of 60 steps in 6 epochs, every step of it saved."""
    (tmp_path / "mine.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.random((120, 8, 8, 3)) * 60 + 90 * y[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    given = (
        "train --data npz --data.path own.npz --model mine.py:make --eps 0.1 --augment crop-flip "
        "--epochs 6 --batch-size 8 --lr 0.1 --validation 0.2 --validation-images 10 "
        "--save-every 1step --attacks fgsm --device cpu"
    )
    return given.split()


def left(folder: Path) -> dict[str, Any]:
    """Every bit that counts: weights, the whole state of training, what was measured."""
    files = [folder / "last.safetensors", folder / "best.safetensors"]
    read = {path.name: tensorfile.read(path) for path in (*files, max(folder.glob("check*")))}
    for _, meta in read.values():
        meta.get("counters", {}).pop("seconds", None)
    bits = {name: (tensorfile.digest(tensors), meta) for name, (tensors, meta) in read.items()}
    return {**bits, "outcomes": json.loads((folder / "outcomes.json").read_text())}


@pytest.mark.parametrize(
    ("kills", "how", "more"),
    [
        (20, "forked", "--defence trades --defence.attack.steps 2 --ema 0.9"),
        (4, "forked", "--defence free --defence.replays 2 --epochs 3"),
        (4, "forked", "--defence seat --defence.attack.steps 2"),
        (4, "forked", "--defence awp-trades --defence.attack.steps 2"),
        (2, "fresh", "--defence madry --defence.attack.steps 2"),
    ],
)
def test_a_killed_run_is_bit_identical(
    tmp_path: Path, words: list[str], kills: int, how: str, more: str
) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"seed of the moments: {seed}")
    call = [sys.executable, str(KILLING), str(seed), str(kills), how, *words, *more.split()]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, cwd=tmp_path, env=environ, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    assert left(tmp_path / "killed") == left(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob("*.part"))
    assert not (tmp_path / "killed" / "run.lock").exists()
