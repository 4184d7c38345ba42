"""`spat doctor` with settings, and `--batch-size auto`, as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spat.cli.main import main

OWN = ("--data", "npz", "--data.path", "own.npz", "--model", "mine.py:make", "--eps", "0.1")
QUICK = (*OWN, "--defence", "trades", "--defence.attack.steps", "1", "--epochs", "1", "--n", "4")


def test_doctor_predicts_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model resnet18 --model.width 0.125 --batch-size 16 --precision float32"
    assert main(["doctor", *words.split(), "--defence.attack.steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {line[:12].strip(): line[13:] for line in lines}
    assert list(told) == ["model", "data", "attacked", "precision", "memory", "time"]
    assert told["model"].startswith("resnet18, ")
    assert told["data"] == "mnist-mini, 13,500 training images of 1x28x28"
    assert "float32" in told["attacked"]
    assert "20 of 20 BatchNorms folded into convolutions." in told["attacked"]
    assert told["precision"] == "float32"
    assert "for a step of 16 images at once" in told["memory"]
    assert "an epoch of 844 updates" in told["time"]
    assert "a prediction from 2 steps of 16 images" in told["time"]


@pytest.mark.usefixtures("own_place")
def test_doctor_looks_at_your_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.out = nn.Linear(64, classes)\n"
        "    def forward(self, x):\n"
        "        return self.out(x.flatten(1) if x.sum() > -1 else x)\n"
        "def make(classes):\n"
        "    return Own(classes)\n"
    )
    assert main(["doctor", *OWN, "--defence", "madry", "--batch-size", "8"]) == 0
    assert "a plain copy: its forward cannot be traced" in capsys.readouterr().out


@pytest.mark.usefixtures("own_place")
def test_an_automatic_batch_is_a_number_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *QUICK, "--batch-size", "auto", "--out", "run"]) == 0
    assert "batch_size auto is" in capsys.readouterr().err
    saved = json.loads(Path("run/settings.json").read_text())["settings"]
    assert saved["batch_size"] in range(1, 41)
    assert main(["train", *QUICK, "--batch-size", "auto", "--dry-run"]) == 0
    assert f"batch_size = {saved['batch_size']}\n" in capsys.readouterr().out


def test_sizes_misspelt(mistake: Callable[..., str]) -> None:
    told = mistake("train", "--batch-size", "atuo", "--out", "never")
    assert told == "spat: batch_size must be a whole number or auto, got 'atuo'."
    told = mistake("train", "--micro-batch", "0", "--out", "never")
    assert told == "spat: micro_batch must be 1 or more, got 0."
    told = mistake("train", "--micro-batch", "200", "--out", "never")
    assert told == "spat: micro_batch must be at most batch_size (128), got 200."
    assert mistake("doctor", "--modle", "resnet18").startswith("spat: unknown setting 'modle'.")
    assert not Path("never").exists()
