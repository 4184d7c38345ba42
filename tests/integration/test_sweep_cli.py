"""`spat sweep` as a user meets it; one test with Ray itself."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import spat
from spat.cli.main import main

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: spat[ray]"
)
GRID = """
data = { name = "npz", path = "own.npz" }
defence = "natural"
eps = 0.1
epochs = 2
batch_size = 10
attacks = ["fgsm"]
device = "cpu"

[grid]
model = ["mine.py:make", "fragile.py:Fragile", "mortal.py:Mortal"]
"""
# While it is trained, not when the sweep looks at it before the first run: one raises where there
# is a file, the other kills its process, once.
MODELS = """
import os, signal
from pathlib import Path
from torch import nn

class Own(nn.Sequential):
    def __init__(self, classes, channels):
        super().__init__(nn.Flatten(), nn.Linear(64 * channels, classes))

class Fragile(Own):
    def forward(self, x):
        if self.training and Path("broken").exists():
            raise RuntimeError("it is broken")
        return super().forward(x)

class Mortal(Own):
    def forward(self, x):
        if self.training and not Path("dead").exists():
            Path("dead").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""


@pytest.fixture
def place(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("grid.toml").write_text(GRID)
    for name in ("fragile.py", "mortal.py"):
        Path(name).write_text(MODELS)
    return own_place


def test_a_dry_run_prints_the_runs_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "grid.toml", "--out", "out", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine.py-make  new",
        "fragile.py-fragile  new",
        "mortal.py-mortal  new",
        "# 3 runs, 0 finished",
    ]
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("grid.toml", "say where the runs go: --out runs/NAME."),
        ("no.toml --out out", "there is no settings file no.toml."),
        (". --out out", "cannot read .: Is a directory."),
        ("grid.toml --out out --lr fast", "run mine.py-make: lr must be a number such as 0.1"),
        ("grid.toml --out out --model lenet5", "gives model in two places; keep one of them."),
        ("grid.toml --out out --workers 0", "--workers: must be a whole number from 1, got '0'."),
        ("grid.toml --out out --cpus-per-run 0", "must be a number such as 2 or 0.5, got '0'."),
        ("grid.toml --out out --gpus-per-run 1.5", "or a whole number, got '1.5'."),
        (
            "grid.toml --out out --only mien*",
            "unknown run 'mien*'. Known: fragile.py-fragile, mine.py",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(
    place: Path, mistake: Callable[..., str], words: str, told: str
) -> None:
    before = sorted(place.iterdir())
    assert told in mistake("sweep", *words.split())
    assert sorted(place.iterdir()) == before


def test_without_ray(
    place: Path, mistake: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = mistake("sweep", "grid.toml", "--out", "out")
    assert told == 'spat: a sweep needs the package ray: pip install "spat[ray]".'
    assert not Path("out").exists()


@NEEDS_RAY
def test_a_cluster_that_is_not_there(place: Path, mistake: Callable[..., str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    told = mistake("sweep", "grid.toml", "--out", "out", "--address", address)
    assert told == f"spat: there is no Ray cluster at {address}: Connection refused."
    assert not Path("out").exists()


@pytest.mark.slow
@NEEDS_RAY
def test_on_ray_one_run_fails_one_is_killed_and_all_are_finished_in_the_end(place: Path) -> None:
    Path("broken").touch()
    first = sweep()
    assert first.returncode == 1, first.stderr
    assert "failed: fragile.py-fragile: " in first.stdout
    assert "mortal.py-mortal: its process was killed, or its machine is gone." in first.stderr
    assert "fragile.py-fragile: " in first.stderr
    assert "it is broken" in first.stderr
    assert states() == ["finished", "failed", "finished"]
    kept = Path("out/mine.py-make/record.json").stat().st_mtime_ns
    Path("broken").unlink()
    second = sweep()
    assert second.returncode == 0, second.stderr
    assert states() == ["finished"] * 3
    assert len(list(Path("out/records").glob("*.json"))) == 3
    assert Path("out/mine.py-make/record.json").stat().st_mtime_ns == kept
    assert "raylet" not in first.stdout + first.stderr + second.stdout + second.stderr


def sweep() -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "spat", "sweep", "grid.toml", "--out", "out"]
    source = str(Path(spat.__file__).parents[1])
    return subprocess.run(
        words, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, timeout=200
    )


def states() -> list[str]:
    runs = json.loads(Path("out/sweep.json").read_text())["runs"]
    return [run["state"] for run in runs.values()]
