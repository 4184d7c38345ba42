"""Two processes behind one command line: one run folder, one voice, one end."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from processes import ended, launch
from spat import tensorfile
from spat.cli.main import main
from spat.training import checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them"),
]
MODEL = """
from torch import nn

def make(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, classes),
    )
"""
GIVEN = shlex.split(
    "train --data npz --data.path own.npz --model mine.py:make --eps 0.1 --augment crop-flip "
    "--defence free --defence.replays 2 --ema 0.9 --epochs 3 --batch-size 15 --lr 0.1 "
    "--validation 0.2 --validation-images 11 --save-every 1step --attacks fgsm --device cpu "
    "--exact"
)
WITHIN = 20  # seconds in which a process that lost another has to end
Running = list["subprocess.Popen[str]"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Batches of 14 and 13 images, so that shares differ."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.random((120, 8, 8, 3)) * 60 + 90 * y[:, None, None, None]).astype(np.uint8)
    np.savez("own.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    Path("mine.py").write_text(MODEL)
    return tmp_path


def start(place: Path, *words: str) -> Running:
    return launch(place, ["-m", "spat", *words])


def finish(place: Path, *words: str) -> list[tuple[int, str, str]]:
    return ended(start(place, *words))


def await_step(folder: Path, step: int = 1) -> None:
    """Until a checkpoint of this step, or of a later one, is there."""
    limit = time.monotonic() + 60
    while not any(int(path.stem[-9:]) >= step for path in folder.glob("checkpoint-*.safetensors")):
        assert time.monotonic() < limit, "no checkpoint came"
        time.sleep(0.005)


def voices(results: list[tuple[int, str, str]]) -> list[str]:
    """The mistakes that were told, by whichever process."""
    lines = [line for _, _, errors in results for line in errors.splitlines()]
    return [line for line in lines if line.startswith("spat: ")]


def left(folder: Path) -> dict[str, Any]:
    """Weights, and the whole state of training."""
    files = [folder / "last.safetensors", folder / "best.safetensors", max(folder.glob("check*"))]
    read = {path.name: tensorfile.read(path) for path in files}
    for _, meta in read.values():
        meta.get("counters", {}).pop("seconds", None)
    return read


def is_near(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The same names, and tensors that rounding may have parted."""
    pairs = [(one[name][0], other[name][0]) for name in one]
    return one.keys() == other.keys() and all(
        a.keys() == b.keys() and all(torch.allclose(a[key], b[key], atol=1e-4) for key in a)
        for a, b in pairs
    )


def is_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """To the bit."""
    digests = [
        {name: (tensorfile.digest(tensors), meta) for name, (tensors, meta) in run.items()}
        for run in (one, other)
    ]
    return digests[0] == digests[1]


def outcomes(folder: Path) -> bytes:
    return (folder / "outcomes.json").read_bytes()


def test_a_run_of_two_is_that_of_one_and_goes_on_as_either(place: Path) -> None:
    """Free, whose perturbation each process has a share of; stopped by SIGTERM, then resumed by two
    processes, to the bit, and by one. Catches: rows of another process that are lost.
    """
    assert main([*GIVEN, "--out", "one"]) == 0
    found = finish(place, *GIVEN, "--out", "two")
    for code, _, errors in found:
        assert code == 0, errors
    assert "report: two/report.html" in found[0][1]
    assert found[1][1:] == ("", "")  # the second process says nothing
    assert {p.name for p in Path("one").iterdir()} == {p.name for p in Path("two").iterdir()}
    one, two = left(Path("one")), left(Path("two"))
    assert is_near(one, two)

    running = start(place, *GIVEN, "--out", "stopped")
    await_step(place / "stopped", 9)
    running[1].send_signal(signal.SIGTERM)  # one of them hears of it
    results = ended(running)
    assert [code for code, _, _ in results] == [143, 143]
    assert [said for _, said, _ in results] == [
        "stopped; go on with: spat train --resume stopped\n",
        "",
    ]
    assert not (place / "stopped" / "record.json").exists()
    shutil.copytree("stopped", "by-one")
    for code, _, errors in finish(place, "train", "--resume", "stopped"):
        assert code == 0, errors
    assert is_equal(two, left(Path("stopped")))
    assert outcomes(Path("two")) == outcomes(Path("stopped"))
    assert main(["train", "--resume", "by-one"]) == 0
    assert is_near(one, left(Path("by-one")))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_other(place: Path, rank: int) -> None:
    running = start(place, *GIVEN, "--epochs", "4000", "--out", "r")
    await_step(place / "r", 3)
    running[rank].kill()
    began = time.monotonic()
    (code, _, errors) = ended(running)[1 - rank]
    assert time.monotonic() - began < WITHIN
    assert code == 2
    assert errors.splitlines()[-1].startswith(
        "spat: one of the 2 processes ended or fell silent, and the others cannot go on without it;"
    )
    assert len(errors.splitlines()[-1]) < 320  # the library's own message, shortened
    assert checkpoint.newest(place / "r").problems == ()


def test_a_mistake_is_told_once(place: Path) -> None:
    """By torchrun itself; the folder is there, which only the first process looks at."""
    (place / "r").mkdir()
    (place / "r" / "mine").touch()
    call = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "spat"]
    done = subprocess.run(
        [*call, *GIVEN, "--out", "r"], cwd=place, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert done.stderr.count("spat: ") == 1
    assert "spat: r already exists; choose another --out, or go on with --resume r." in done.stderr
    assert "exitcode  : 2" in done.stderr  # torchrun may end the second one before its own end
    assert [path.name for path in (place / "r").iterdir()] == ["mine"]


def test_a_mistake_of_one_process_ends_all_and_is_told_once(place: Path) -> None:
    """As on another machine, which lacks the images, or has others."""
    there = place / "there"
    there.mkdir()
    results = ended(launch(place, ["-m", "spat", *GIVEN, "--out", "r"], elsewhere=there))
    assert [code for code, _, _ in results] == [2, 2]
    assert voices(results) == ["spat: cannot read own.npz: No such file or directory."]

    held = dict(np.load("own.npz"))
    held["y_train"] = 2 - held["y_train"]
    np.savez(there / "own.npz", **held)
    results = ended(launch(place, ["-m", "spat", *GIVEN, "--out", "r"], elsewhere=there))
    assert [code for code, _, _ in results] == [2, 2]
    assert voices(results) == [
        "spat: the 2 processes differ in their settings or their images: start each with the same "
        "words, on the same data."
    ]
    assert not (place / "r").exists()


def test_a_last_save_that_fails_ends_all(place: Path) -> None:
    """A folder stands where the file would go; only the first process meets it."""
    running = start(place, *GIVEN, "--out", "r")
    await_step(place / "r")
    in_the_way(place / "r" / "last.safetensors.part")
    results = ended(running)
    assert [code for code, _, _ in results] == [2, 2]
    assert voices(results) == [
        "spat: could not write r/last.safetensors: Is a directory; what was there before is intact."
    ]
    assert checkpoint.newest(place / "r").problems == ()


def in_the_way(path: Path) -> None:
    while not path.is_dir():
        with contextlib.suppress(FileExistsError):
            path.mkdir()


@pytest.fixture
def trained(place: Path) -> Path:
    assert main([*GIVEN, "--epochs", "1", "--out", "one"]) == 0
    return place


def test_an_evaluation_of_two_has_the_rows_of_one_byte_for_byte(trained: Path) -> None:
    """Of an odd number of images, and of one alone; what each found is in the file and the card."""
    asked = ["evaluate", "one", "--attacks", "fgsm,pgd-5,apgd-dlr", "--device", "cpu"]
    files = ["--card", "two.json", "--save-adversarial", "two.safetensors"]
    assert main([*asked, "--n", "19", "--out", "of-one"]) == 0
    results = finish(trained, *asked, "--n", "19", "--out", "of-two", *files)
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[1][1:] == ("", "")
    assert outcomes(Path("of-two")) == outcomes(Path("of-one"))
    assert {p.name for p in Path("of-two").iterdir()} == {p.name for p in Path("of-one").iterdir()}
    assert main(["verify", "two.json"]) == 0
    assert main([*asked, "--n", "1", "--out", "single"]) == 0
    assert [code for code, _, _ in finish(trained, *asked, "--n", "1", "--out", "alone")] == [0, 0]
    assert outcomes(Path("alone")) == outcomes(Path("single"))


def test_an_evaluation_of_two_stops_and_goes_on(trained: Path) -> None:
    asked = [
        "evaluate",
        "one",
        "--attacks",
        "square-5000,pgd-4000",
        "--device",
        "cpu",
        "--eps",
        "0.001",
    ]
    running = start(trained, *asked, "--save-every", "0.01s", "--out", "r")
    state = trained / "r" / "state"
    while not list(state.rglob("*.safetensors")):
        assert all(process.poll() is None for process in running)
        time.sleep(0.005)
    running[1].send_signal(signal.SIGTERM)
    results = ended(running)
    assert [code for code, _, _ in results] == [143, 143], results
    assert results[0][1] == "stopped; go on with: spat evaluate --resume r\n"
    assert not (trained / "r" / "record.json").exists()
    assert list(state.rglob("*.safetensors"))
    for code, _, errors in finish(trained, "evaluate", "--resume", "r"):
        assert code == 0, errors
    assert not state.exists()
    assert main([*asked, "--out", "of-one"]) == 0
    assert outcomes(Path("r")) == outcomes(Path("of-one"))


def test_sampling_is_for_one_process(trained: Path) -> None:
    results = finish(trained, "evaluate", "one", "--attacks", "fgsm", "--within", "5pp")
    assert [code for code, _, _ in results] == [2, 2]
    assert voices(results) == [
        "spat: within 5pp samples the images by what is known of all so far, which 2 processes do "
        "not know: leave it out, or use one process."
    ]
