"""Memory that is known: it does not grow with the inner steps, and is predicted before a run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spat
from spat.attacks.pgd import PGD
from spat.config import Training
from spat.defences._base import Defence
from spat.errors import UserError
from spat.training import live, room
from spat.training.room import free_memory, sized
from spat.training.trial import KEPT, Memory, Trial
from toys import toy

CPU = torch.device("cpu")
MIB = 2**20


def subject(name: str, defence: Defence, **settings: Any) -> Trial:
    size = {"size": 32} if name == "small-cnn" else {"width": 0.25}
    model = spat.model(name, channels=3, head=defence.head, **size)
    return Trial(model, defence, Training(**settings), (3, 32, 32), CPU)


def with_steps(defence: Defence, steps: int, kind: type[PGD] = PGD) -> Defence:
    own = {k: v for k, v in vars(defence.attack).items() if k != "steps"}
    return replace(defence, attack=kind(**own, steps=steps))


def peak(defence: Defence, *, exact: bool = False) -> int:
    """Of a step of eight images, beside what is there between two steps."""
    trial = subject("small-cnn", defence, exact=exact)
    trial.step(8)
    return live.peak(lambda: trial.step(8), CPU)


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("name", ["spat", "madry", "gairat", "awp-trades"])
def test_memory_does_not_grow_with_inner_steps(name: str, exact: bool) -> None:
    defence = spat.defence(name)
    few, many = (peak(with_steps(defence, steps), exact=exact) for steps in (2, 20))
    assert many == pytest.approx(few, rel=0.01)


def test_a_graph_that_is_kept_is_seen() -> None:
    """The test above can fail: here each inner step leaves its graph behind."""
    kept: list[Tensor] = []

    @dataclass(frozen=True, kw_only=True)
    class Leaky(PGD):
        def _climb(self, model: nn.Module, x_adv: Tensor, x: Tensor, value: Any) -> Tensor:
            def twice(images: Tensor) -> Tensor:
                kept.append(model(images))  # for a log, say
                return model(images)

            return super()._climb(twice, x_adv, x, value)  # type: ignore[arg-type]

    defence = spat.defence("madry")
    few, many = (peak(with_steps(defence, steps, Leaky)) for steps in (2, 20))
    assert many > 2 * few


def test_what_is_live_at_once() -> None:
    """Two maps of a mebibyte, then a third once one of them is gone; views take nothing."""

    def work() -> None:
        a = torch.zeros(MIB // 4)
        b = a + 1
        del a
        c = b.view(2, -1) * 2
        c += 1

    assert live.peak(work, CPU) == 2 * MIB
    x = torch.zeros(MIB // 4)
    assert live.peak(lambda: x.add_(1), CPU) == 0
    assert live.size([x, x[:5], x.view(2, -1)]) == MIB


@pytest.mark.parametrize("name", ["small-cnn", "resnet18"])
def test_memory_is_predicted(name: str) -> None:
    """From batches of 8 and 16, for one of 50; the weights and what goes with them included."""
    trial = subject(name, spat.defence("spat"))
    assert trial.memory().of(50) == pytest.approx(KEPT * trial.peak(50), rel=0.1)


def test_micro_batches_need_the_memory_of_their_size() -> None:
    """The activations of 12 of 144 images, and the images."""
    defence = spat.defence("madry", **{"attack.steps": 2})
    model = spat.model("small-cnn", channels=3, size=32)

    def needed(images: int, micro_batch: int | None) -> int:
        trial = Trial(model, defence, Training(), (3, 32, 32), CPU)
        trial.engine.micro_batch = micro_batch
        return trial.peak(images)

    assert needed(12, None) < needed(144, 12) < 0.5 * needed(144, None)


PROCESS = """
import sys, torch, spat
from pathlib import Path
from spat.config import Training
from spat.training.trial import SOME, Trial
torch.set_num_threads(1)
name, images = sys.argv[1], int(sys.argv[2])
size = {"size": 32} if name == "small-cnn" else {"width": 0.25}
model = spat.model(name, channels=3, head="cosine", **size)
trial = Trial(model, spat.defence("spat", **{"attack.steps": 4}), Training(), (3, 32, 32),
    torch.device("cpu"))
memory = trial.memory()
def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = most()
for _ in range(2):
    trial.step(images)
print(memory.each * (images - SOME), most() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and glibc's memory")
@pytest.mark.parametrize(("name", "images"), [("small-cnn", 256), ("resnet18", 96)])
@pytest.mark.parametrize("gives_back", [False, True], ids=["as it is", "what is freed goes back"])
def test_the_process_takes_what_is_predicted(name: str, images: int, gives_back: bool) -> None:
    """What the system counts, oneDNN's own memory and all. Told to give all that is freed back,
    the C library leaves what the tensors take.
    """
    told = {"MALLOC_MMAP_THRESHOLD_": "65536"} if gives_back else {}
    command = [sys.executable, "-c", PROCESS, name, str(images)]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **told}
    )
    predicted, measured = map(float, found.stdout.split())
    if gives_back:
        assert predicted / KEPT == pytest.approx(measured, rel=0.15)
    else:
        assert predicted == pytest.approx(measured, rel=0.3)


@pytest.mark.slow
def test_the_time_of_an_epoch_is_predicted() -> None:
    """Within a factor 1.5; others may use the machine, so the best of three counts."""
    x, y = toy(640)
    x, defence = x[:, :1].repeat(1, 1, 4, 4), spat.defence("trades", **{"attack.steps": 5})
    factors = []
    for _ in range(3):
        model = spat.model("small-cnn", size=32)
        predicted = Trial(model, defence, Training(), (1, 32, 32), CPU).seconds(64) * 10
        done = spat.train(model, x, y, defence=defence, epochs=1, batch_size=64, validation=0)
        took = next(e.values["seconds"] for e in done.events if e.kind == "epoch")
        factors.append(max(predicted / took, took / predicted))
    assert min(factors) < 1.5, factors


def chosen(train: int = 4000, **settings: Any) -> tuple[int, str]:
    images = spat.data("mnist-mini").train[:train]
    given = Training(batch_size="auto", **settings)
    defence = spat.defence("madry", **{"attack.steps": 2})
    found, note = sized(given, spat.model("small-cnn"), defence, images, CPU)
    assert replace(found, batch_size="auto") == given
    return found.size, note


def test_a_cpu_with_memory_takes_the_usual_batch() -> None:
    assert chosen(lr=0.05) == (
        128,
        "batch_size auto is 128: the usual number: on a CPU more at once are no faster. "
        "lr stays 0.05.",
    )


def test_never_more_than_there_are() -> None:
    assert chosen(train=40)[0] == 40


def test_short_memory_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "memory", lambda self: Memory(100 * MIB, 10 * MIB))
    monkeypatch.setattr(room, "free_memory", lambda device: int(500 * MIB / 0.8))  # 40 images
    size, note = chosen()
    assert size == 32
    assert note == (
        "batch_size auto is 32: a step takes about 0.41 of 0.61 GiB. lr stays 0.1, which with "
        "another batch than the usual 128 is another recipe; in proportion it would be 0.025."
    )


def test_not_even_one_image_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda device: MIB)
    with pytest.raises(UserError, match="an update of one image takes about .* take a smaller mod"):
        chosen()


class Scarce:
    """A GPU's memory, which no test machine has: a step of too many images ends as torch's do."""

    def __init__(self, most: int) -> None:
        self.most, self.tried = most, list[int]()

    def peak(self, images: int) -> int:
        self.tried.append(images)
        if images > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return images * MIB


@pytest.mark.parametrize(
    ("most", "free", "images", "size"),
    [
        (300, 10**6, 50_000, 256),  # the largest power of two that fits
        (10**6, 100, 50_000, 64),  # 80 of 100 MiB may be taken
        (10**6, 10**6, 50_000, 512),  # within reason
        (10**6, 10**6, 13_500, 256),  # 50 updates an epoch
        (10**6, 10**6, 400, 128),  # of few images the usual batch
        (1, 10**6, 50_000, 1),
    ],
)
def test_a_gpu_tries_twice_as_many(most: int, free: int, images: int, size: int) -> None:
    trial = Scarce(most)
    assert room._tried(trial, images, free * MIB)[0] == size  # type: ignore[arg-type]
    assert trial.tried[-1] <= 1024


def test_a_gpu_without_room_for_one_image() -> None:
    with pytest.raises(UserError, match="an update of one image does not fit, and 1 GiB are free"):
        room._tried(Scarce(0), 1000, 2**30)  # type: ignore[arg-type]


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert room._group_limit(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert room._group_limit(tmp_path) > 2**60
    assert room._group_limit(tmp_path / "none") > 2**60
    assert free_memory(CPU) > 100 * MIB


def test_training_from_python_says_what_was_chosen() -> None:
    x, y = toy(50)
    model = spat.model("resnet18", channels=2, classes=4, width=0.1)
    done = spat.train(model, x, y, defence="natural", epochs=1, batch_size="auto", validation=0)
    assert "batch_size auto is 50: all training images" in done.events[0].values["text"]
