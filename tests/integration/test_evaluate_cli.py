"""`spat evaluate` as a user meets it: its own flags, stopping, going on, and what mistakes get."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spat import tensorfile
from spat.cli.main import main

pytestmark = pytest.mark.usefixtures("own_place")
GIVEN = "evaluate mine.py:make --data npz --data.path own.npz --eps 8/255 --device cpu"
TRAINED = (
    "train --model mine.py:make --data npz --data.path own.npz --epochs 1 --batch-size 20 --out r"
)
posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


def evaluate(more: str) -> int:
    return main([*GIVEN.split(), *more.split()])


def record(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "record.json").read_text())
    return found


def test_its_flags_are_the_evaluations_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--attacks clean fgsm,pgd-2 apgd-ce-2 --batch-size 7 --exact --n 20 --out a"
    assert evaluate(words) == 0
    found = record("a")
    settings = found["settings"]
    assert settings["evaluation.batch_size"] == 7
    assert settings["evaluation.exact"] is True
    assert settings["batch_size"] == 128  # training's, which nobody touched
    assert settings["exact"] is False
    assert settings["attacks"] == ["clean", "fgsm", "pgd-2", "apgd-ce-2"]
    assert found["how"] == {
        "attacked": "the model itself",
        "batch_size": 7,
        "images": 20,
        "of": 40,
        "chosen": "the first 20 of the test set",
    }
    assert [row["attack"] for row in found["measured"]] == [
        "clean", "fgsm", "pgd-2", "apgd-ce-2", "worst",
    ]  # fmt: skip
    names = {path.name for path in Path("a").iterdir()}
    assert names == {"evaluation.json", "outcomes.json", "record.json", "report.html"}
    assert "evaluation: chosen" in Path("a", "report.html").read_text()
    capsys.readouterr()
    assert main(["evaluate", "--resume", "a"]) == 0  # nothing is left to do: the table once more
    assert "worst case" in capsys.readouterr().out


def test_a_sample_is_told_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    more = "--attacks fgsm --within 17pp --batch-size 8 --out a --card c.json"
    assert evaluate(f"{more} --save-adversarial adv.safetensors") == 0
    shown, found = capsys.readouterr(), record("a")
    n = found["how"]["images"]
    assert 16 <= n < 40
    assert found["how"]["chosen"] == "the first of a random order, seed 0"
    assert all(row["n"] == n for row in found["measured"])
    note = f"{n} of 40 images were attacked, the first of a random order (seed 0): half the 95%"
    for text in (shown.out, Path("a", "report.html").read_text(), "".join(found["notes"])):
        assert note in text
    assert f"image {n}/40: worst case " in shown.err
    card = json.loads(Path("c.json").read_text())
    assert card["how"] == found["how"]
    assert card["notes"] == found["notes"]
    rows = tensorfile.read(Path("adv.safetensors"))[0]
    ids = rows["ids"].tolist()
    assert ids == sorted(ids) == card["examples"]["ids"]  # in the order of the test set
    assert ids != list(range(n))
    with np.load("own.npz") as arrays:
        clean = arrays["x_test"][ids].transpose(0, 3, 1, 2) / np.float32(255)
        assert rows["labels"].tolist() == arrays["y_test"][ids].tolist()
    assert np.abs(rows["x_adv"].numpy() - clean).max() <= 8 / 255 + 1e-6
    assert main(["verify", "c.json"]) == 0


def test_a_training_run_may_sample_too(capsys: pytest.CaptureFixture[str]) -> None:
    more = "--defence madry --eps 0.1 --attacks fgsm --evaluation.within 20pp"
    assert main([*TRAINED.split(), *more.split()]) == 0
    assert record("r")["how"]["images"] < 40
    before = Path("r", "outcomes.json").read_bytes()
    assert main(["train", "--resume", "r"]) == 0
    assert Path("r", "outcomes.json").read_bytes() == before
    capsys.readouterr()
    assert main(["evaluate", "r", "--batch-size", "9", "--attacks", "fgsm", "--out", "e"]) == 0
    assert record("e")["settings"]["batch_size"] == 20
    assert record("e")["settings"]["evaluation.batch_size"] == 9


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("--eps 0", "eps of an evaluation must be above 0, got 0."),
        ("--eps -0.1", "eps of an evaluation must be above 0, got -0.1."),
        ("--eps 8", "eps of Linf must lie in [0, 1], got 8. Did you mean 8/255?"),
        ("--attacks pgdd-20", "unknown attack 'pgdd-20'."),
        ("--batch-size 0", "batch_size must be 1 or more, or auto, got 0."),
        ("--batch-size many", "batch_size must be a whole number or auto, got 'many'."),
        ("--within wide", "within must be half the width of an interval, above 0 and below 50"),
        ("--within 60pp", "such as 1pp or 0.5pp, got '60pp'."),
        ("--within", "evaluation.within must be a text or a number"),
        ("--budget 5steps", "budget must be a time such as 30s, 5m or 2h, got '5steps'."),
        ("--budget never", "budget must be a time such as 30s, 5m or 2h, got 'never'."),
        ("--save-every often", "save_every must be a time or a number of steps"),
        ("--epochs 3", "--epochs is a setting of training; leave it out."),
        ("--save-each", "--save-each says what --save-adversarial FILE keeps; give both."),
    ],
)
def test_a_mistake_gets_one_sentence(
    more: str, text: str, own_place: Path, mistake: Callable[..., str]
) -> None:
    before = sorted(own_place.iterdir())
    assert text in mistake(*GIVEN.split(), *more.split(), "--out", "a")
    assert [p for p in sorted(own_place.iterdir()) if p.name != "__pycache__"] == before


def test_what_cannot_go_on_is_told(own_place: Path, mistake: Callable[..., str]) -> None:
    assert evaluate("--attacks fgsm --n 4 --out a") == 0
    told = mistake("evaluate", "--resume", "nowhere")
    assert told == ("spat: nowhere is no folder of spat evaluate: it has no evaluation.json.")
    for left in ("--n", "--exact", "--out", "--attacks"):
        told = mistake("evaluate", "--resume", "a", left, *([] if left == "--exact" else ["3"]))
        assert told.endswith(f"keeps what it was asked; leave out {left}.")
    assert "leave out mine.py:make" in mistake("evaluate", "mine.py:make", "--resume", "a")
    assert "are required: target" in mistake("evaluate")
    assert "a already exists; choose another --out, or go on with" in mistake(
        *GIVEN.split(), "--out", "a"
    )
    Path("a", "evaluation.json").write_text("[]")
    assert "is not a whole file of spat evaluate" in mistake("evaluate", "--resume", "a")
    Path("a", "evaluation.json").write_text("{")
    assert "is no whole JSON file" in mistake("evaluate", "--resume", "a")


def test_a_budget_that_was_too_small_can_be_raised(capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        """What is said after the notes of an evaluation that had begun."""
        assert main(list(words)) == 2
        return capsys.readouterr().err.splitlines()[-1]

    more = "--attacks fgsm pgd-2 --batch-size 8"
    told = refused(*GIVEN.split(), *more.split(), "--budget", "0.001s", "--out", "a")
    assert told.endswith("16 images were attacked: give it more time, or fewer attacks.")
    assert refused("evaluate", "--resume", "a") == told
    none = refused("evaluate", "--resume", "a", "--budget", "none")
    assert "a was begun with --within or --budget, which decides the order of" in none
    assert main(["evaluate", "--resume", "a", "--budget", "5m", "--save-every", "1m"]) == 0
    assert record("a")["settings"]["evaluation.budget"] == "5m"
    assert evaluate(f"{more} --out b") == 0
    one, other = (json.loads(Path(at, "outcomes.json").read_text()) for at in "ab")
    assert one["attacks"] == other["attacks"]


def test_inputs_outside_the_unit_interval(own_place: Path, mistake: Callable[..., str]) -> None:
    with np.load("own.npz") as arrays:
        parts = dict(arrays)
    np.savez("own.npz", **{k: v * 2.0 if k[0] == "x" else v for k, v in parts.items()})
    assert "[0, 1]" in mistake(*GIVEN.split(), "--attacks", "fgsm", "--out", "a")


def started(more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "spat", *GIVEN.split(), *more.split()]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@posix
@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_leaves_an_evaluation_that_goes_on(
    name: str, code: int, mistake: Callable[..., str]
) -> None:
    more = "--attacks pgd-2 square-4000 --eps 1/255"
    process = started(f"{more} --save-every 1step --out a")
    deadline = time.monotonic() + 60
    while not list(Path("a").glob("state/*attack-001*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(getattr(signal, name))
    said = process.communicate(timeout=30)[0]
    assert process.returncode == code
    assert said.splitlines()[-1] == "stopped; go on with: spat evaluate --resume a"
    assert not Path("a", "record.json").exists()
    whole = Path("own.npz").read_bytes()
    np.savez("own.npz", **{k: 255 - v if k[0] == "x" else v for k, v in np.load("own.npz").items()})
    told = mistake("evaluate", "--resume", "a")
    assert "a/state holds the state of another evaluation, of other images: go on with" in told
    Path("own.npz").write_bytes(whole)
    assert main(["evaluate", "--resume", "a"]) == 0
    assert evaluate(f"{more} --out b") == 0
    assert Path("a", "outcomes.json").read_bytes() == Path("b", "outcomes.json").read_bytes()


@posix
@pytest.mark.slow
def test_without_a_folder_a_signal_says_that_nothing_was_kept(own_place: Path) -> None:
    process = started("--attacks pgd-2 square-8000 --eps 1/255 --save-adversarial x.safetensors")
    deadline = time.monotonic() + 60
    while not Path("x.safetensors.part").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 143
    assert said.splitlines()[-1] == "stopped; nothing was kept: with --out RUN it could go on"
    assert not list(own_place.glob("x.*"))


@posix
@pytest.mark.slow
def test_a_training_run_goes_on_in_its_evaluation(capfd: pytest.CaptureFixture[str]) -> None:
    more = "--eps 1/255 --attacks pgd-2 square-4000 --evaluation.save-every 1step"
    call = [sys.executable, "-m", "spat", *TRAINED.split(), "--defence", "natural", *more.split()]
    process = subprocess.Popen(call, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not list(Path("r").glob("state/*attack-001*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert list(Path("r", "state").glob("*attack-000*-over.safetensors"))
    assert main(["train", "--resume", "r"]) == 0
    capfd.readouterr()
    assert main(["evaluate", "r", "--attacks", "pgd-2", "square-4000", "--out", "e"]) == 0
    one, other = (json.loads(Path(at, "outcomes.json").read_text()) for at in ("r", "e"))
    assert one == other
    assert not Path("r", "state").exists()
