"""What many tests share: one thread (tests run side by side), small models that know answers.

For the command line: a model and data of one's own, and the one line that a mistake gets.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spat.cli.main import main

torch.set_num_threads(1)


class Linear(nn.Module):
    """Two or more classes, logits linear in the pixels: every optimum has a closed form."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Convolutional(nn.Module):
    """All that an attack could disturb: BatchNorms (one of them frozen), dropout."""

    def __init__(self, classes: int = 4, channels: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        h = torch.relu(self.bn2(self.conv2(h)))
        logits: Tensor = self.out(self.drop(h.mean((2, 3))))
        return logits


@pytest.fixture
def convolutional() -> Convolutional:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Convolutional()
        with torch.no_grad():  # as after some training: statistics that are not the initial ones
            for bn in (model.bn1, model.bn2):
                bn.running_mean.uniform_(-0.2, 0.2)  # type: ignore[union-attr]
                bn.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    model.train()
    model.bn2.eval()  # frozen by its owner
    return model


@pytest.fixture
def images() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    return torch.rand(6, 2, 8, 8, generator=rng), torch.randint(0, 4, (6,), generator=rng)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def heard_signals() -> Iterator[None]:
    """Signals as at a terminal, whoever runs the tests: `nohup` or a shell's `&` ignores some."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


OWN_MODEL = """
from torch import nn
def make(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes))
"""


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a linear model in mine.py, two classes that overlap in own.npz."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.random((40, 8, 8, 1)) * 200 + 40 * y[:, None, None, None]).astype(np.uint8)
    np.savez("own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    Path("mine.py").write_text(OWN_MODEL)
    return tmp_path


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that is to fail: exit code 2 and the one line that it gives back."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 2
        text = capsys.readouterr().err.strip()
        assert text.startswith("spat: ")
        assert "\n" not in text
        return text

    return run
