"""The command line as a user meets it: what works, and what each mistake gets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from spat.cli.main import main

QUICK = "--epochs 1 --batch-size 500 --lr 0.05 --validation-images 50 --n 30 --attacks fgsm pgd-2"


@pytest.fixture(autouse=True)
def one_thread_and_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    """Two easy classes: bright images and dark ones."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = (rng.random((60, 16, 16, 1)) * 60 + 150 * y[:, None, None, None]).astype(np.uint8)
    path = tmp_path / "own.npz"
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return path


def train(npz: Path, out: str, *more: str) -> int:
    words = f"train --data npz --data.path {npz} --eps 0.1 --defence.attack.steps 1 {QUICK}"
    return main([*words.split(), "--batch-size", "10", "--out", out, *more])


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line a mistake gets: exit code 2, no traceback."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    text = capsys.readouterr().err.strip()
    assert text.startswith("spat: ")
    assert "\n" not in text
    return text


def test_train_evaluate_attack_resume(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(npz, "first", "--tensorboard") == 0
    run = tmp_path / "first"
    names = {path.name for path in run.iterdir()}
    assert {
        "settings.json",
        "events.jsonl",
        "best.safetensors",
        "last.safetensors",
        "outcomes.json",
        "record.json",
        "report.html",
        "tensorboard",
    } <= names
    assert list((run / "tensorboard").iterdir())
    shown = capsys.readouterr().out
    assert "fgsm scale 1" in shown
    assert "fgsm scale 5" in shown
    assert "worst case" in shown
    record = json.loads((run / "record.json").read_text())
    assert record["measured"][0]["n"] == 20
    assert record["settings"]["defence.attack.eps"] == 0.1
    assert main(["evaluate", "first", "--attacks", "cw-3", "--n", "10", "--out", "second"]) == 0
    assert (tmp_path / "second" / "report.html").exists()
    weights = str(run / "best.safetensors")
    assert main(["evaluate", weights, "--attacks", "fgsm"]) == 0
    assert main(["attack", "first", "--with", "pgd-2", "--n", "5", "--out", "adv.npz"]) == 0
    with np.load(tmp_path / "adv.npz", allow_pickle=False) as arrays:
        assert arrays["x_adv"].shape == (5, 1, 16, 16)
        assert np.abs(arrays["x_adv"] - arrays["x"]).max() <= 0.1 + 1e-6
    assert main(["train", "--resume", "first"]) == 0


def test_the_users_own_model_by_import_path(npz: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def make(classes, channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(256 * channels, classes))\n"
    )
    assert train(npz, "own", "--model", "mine.py:make", "--defence", "trades") == 0
    words = f"evaluate mine.py:make --weights own/best.safetensors --data npz --data.path {npz}"
    assert main([*words.split(), "--eps", "8/255", "--attacks", "fgsm"]) == 0
    assert main(["evaluate", "own", "--attacks", "fgsm"]) == 0  # its settings are read back too


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return super().forward(x).softmax(1)", "the model returns probabilities, not logits"),
        (
            "raise ValueError('no')",
            "the model cannot take images of shape (1, 1, 16, 16): ValueErr",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["train", "evaluate", "attack"])
def test_an_own_model_that_is_no_classifier(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, text: str, verb: str
) -> None:
    """Told before any file is written, whichever verb is the first to see it."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(256, classes))\n"
        "    def forward(self, x):\n"
        f"        {body}\n"
    )
    model = ["--model", "mine.py:Mine"] if verb == "train" else ["mine.py:Mine"]
    data = f"--data npz --data.path {npz} --eps 0.1 --out made".split()
    rest = ["--defence", "trades"] if verb == "train" else []
    told = error(capsys, verb, *model, *data, *rest)
    assert text in told.replace("(4, 1,", "(1, 1,")
    assert not list((tmp_path / "made").glob("*"))


def test_dry_run_prints_every_setting_and_writes_nothing(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(npz, "dry", "--dry-run") == 0
    shown = capsys.readouterr().out
    for line in ("eps = 0.1", "defence.attack.eps = 0.1", "model.classes = 2", "lr = 0.05"):
        assert line in shown.splitlines()
    assert not (tmp_path / "dry").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["list"], ["list", "attack", "pgd"]])
def test_looking_around(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("verb", ["train", "evaluate", "attack", "data", "list", "doctor", "demo"])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main([verb, "--help"]) == 0
    except SystemExit as done:
        assert done.code == 0
    assert f"spat {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("defence", ["madry", "trades", "mail-at", "spat-official"])
def test_a_recipe_takes_another_defence(defence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--recipe", "demo", "--defence", defence, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert f"defence = {defence}" in shown
    assert "defence.detach_gains = true" not in shown  # which is the demo's own


def test_doctor_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 5 < len(lines) < 24
    facts = ("software", "cores", "gpu", "bfloat16", "memory", "cifar10", "mnist")
    assert set(facts) <= {line.split()[0] for line in lines}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("trian", "unknown command 'trian'. Did you mean 'train'?"),
        ("train", "say where the run goes: --out runs/NAME."),
        ("train --out a --epoch 3", "unknown setting 'epoch'. Did you mean 'epochs'?"),
        ("train --out a --defence spta", "unknown defence 'spta'. Did you mean 'spat'?"),
        ("train --out a --eps 8", "eps of Linf must lie in [0, 1], got 8. Did you mean 8/255?"),
        ("train --out a --epochs many", "epochs must be a whole number, got 'many'."),
        ("train --out a --config none.toml", "there is no settings file none.toml."),
        ("train --out a --device tpu", "device must be auto, cpu or cuda"),
        ("train --out a --attacks fgsm pdg", "unknown attack 'pdg'. Did you mean 'pgd'?"),
        ("train --out a --defence", "defence must be the name of a defence, see `spat list`"),
        ("train --out a --lr", "lr must be a number such as 0.1 or 8/255, got True."),
        ("train --out a stray", "'stray' is not a setting; settings look like --epochs 10."),
        ("train --out a --data npz", "needs the setting 'path'"),
        ("train --out a --data npz --data.path no.npz", "no.npz"),
        ("train --out a --model no.such:thing", "no.such"),
        ("train --resume nowhere", "nowhere is not a run folder: it has no settings.json."),
        ("evaluate nowhere", "there is no nowhere: give a run folder, a weights file or"),
        ("attack nowhere", "the following arguments are required: --out"),
        ("data fetch mnst", "unknown dataset 'mnst'. Did you mean 'mnist'?"),
        ("data fetch", "say which data set to fetch: cifar10, mnist."),
        ("data fetch folder", "folder needs no fetching; these do: cifar10, mnist."),
        ("list attacs", "unknown kind of component 'attacs'. Did you mean 'attack'?"),
    ],
)
def test_a_mistake_gets_one_sentence(
    words: str, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert text in error(capsys, *words.split())
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_a_run_folder_that_exists_is_refused(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("precious")
    words = f"train --data npz --data.path {npz} --eps 0.1 --out taken".split()
    assert "taken already exists; choose another --out" in error(capsys, *words)
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["thesis.txt"]


def test_wrong_weights(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(npz, "first") == 0
    weights = tmp_path / "first" / "best.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
    assert "was altered after it was written" in error(capsys, "evaluate", "first")
    weights.write_bytes(whole[: len(whole) // 2])
    assert "is not a whole safetensors file" in error(capsys, "evaluate", "first")
    weights.write_bytes(whole)
    other = ["evaluate", "first", "--model", "lenet5"]
    assert "unknown setting" in error(capsys, *other) or "another architecture" in error(
        capsys, *other
    )
    torch.save({"w": 3}, tmp_path / "odd.pt")
    odd = f"evaluate odd.pt --model lenet5 --data npz --data.path {npz} --eps 0.1".split()
    assert "odd.pt" in error(capsys, *odd)


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_leaves_a_run_that_can_go_on(
    npz: Path, tmp_path: Path, name: str, code: int
) -> None:
    words = f"train --data npz --data.path {npz} --eps 0.1 --epochs 2000 --batch-size 10 --out r"
    words += " --defence.attack.steps 1 --validation-images 4"
    process = subprocess.Popen([sys.executable, "-m", "spat", *words.split()], cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "r").glob("checkpoint-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(getattr(signal, name))
        assert process.wait(30) == code
    finally:
        process.kill()
        process.wait()
    saved = max((tmp_path / "r").glob("checkpoint-*"))
    events = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    last = json.loads(events[-1])
    assert last["kind"] == "end"
    assert last["stopped"] is True
    assert f"{last['step']:09d}" in saved.name


def test_no_write_permission(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    words = f"train --data npz --data.path {npz} --eps 0.1 --out file/below".split()
    assert "could not make the folder file/below" in error(capsys, *words)
