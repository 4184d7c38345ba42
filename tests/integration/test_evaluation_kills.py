"""Killed at random moments, inside Square too, an evaluation ends as if it had not: each byte."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

KILLING = Path(__file__).with_name("killing_evaluations.py")
MODEL = """
import torch
from torch import nn

def make(classes, channels):
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, classes),
        )
        net[-1].bias -= net.eval()(torch.rand(200, channels, 8, 8)).mean(0)  # no favourite class
    return net
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them"),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Images with the labels that the model gives them, so that all are to be attacked."""
    (tmp_path / "mine.py").write_text(MODEL)
    x = np.random.default_rng(0).integers(0, 256, (120, 8, 8, 3), dtype=np.uint8)
    code = (
        "import numpy, torch, mine\n"
        "x = numpy.load('x.npy')\n"
        "with torch.no_grad():\n"
        "    z = mine.make(4, 3).eval()(torch.from_numpy(x).permute(0, 3, 1, 2) / 255)\n"
        "y = z.argmax(1).numpy()\n"
        "numpy.savez('own.npz', x_train=x, y_train=y, x_test=x, y_test=y)\n"
    )
    np.save(tmp_path / "x.npy", x)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("kills", "more"),
    [(6, "--attacks pgd-3 aa-8000"), (3, "--attacks pgd-3 aa-8000 --within 17pp --batch-size 8")],
)
def test_a_killed_evaluation_is_byte_identical(place: Path, kills: int, more: str) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"seed of the moments: {seed}")
    given = "evaluate mine.py:make --data npz --data.path own.npz --eps 2/255 --device cpu"
    words = [*given.split(), "--save-every", "0.05s", *more.split()]
    call = [sys.executable, str(KILLING), str(seed), str(kills), *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, cwd=place, env=environ, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    whole, killed = place / "whole", place / "killed"
    assert (killed / "outcomes.json").read_bytes() == (whole / "outcomes.json").read_bytes()
    images = [place / f"{folder.name}.safetensors" for folder in (whole, killed)]
    assert images[0].read_bytes() == images[1].read_bytes()
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}
    assert not list(place.glob("*.part"))
