"""What can go wrong around a run, on a real command line: it says so in a sentence, or goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spat.cli.main import main
from spat.folder import locked

pytestmark = pytest.mark.skipif(os.name != "posix", reason="handles and locks as POSIX has them")
QUICK = (
    "train --data npz --data.path own.npz --eps 0.1 --model lenet5 --defence natural --epochs 1 "
    "--batch-size 20 --n 10 --attacks fgsm --validation-images 4 --device cpu"
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (60, 28, 28, 1)).astype(np.uint8), np.arange(60) % 2
    np.savez("own.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 2
    text = capsys.readouterr().err.strip()
    assert text.startswith("spat: ")
    assert "\n" not in text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("closing", ["nobody reads", "none was opened"])
def test_a_run_outlives_its_terminal(tmp_path: Path, closing: str) -> None:
    """A pipe that nobody reads, and handles that were closed before it began."""
    words = [sys.executable, "-m", "spat", *QUICK.split(), "--out", "r"]
    if closing == "nobody reads":
        reader, writer = os.pipe()
        os.close(reader)
        process = subprocess.Popen(words, stdout=writer, stderr=writer)
        os.close(writer)
    else:
        process = subprocess.Popen(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words])
    assert process.wait(60) == 0
    assert {"record.json", "report.html", "best.safetensors"} <= {
        p.name for p in Path("r").iterdir()
    }


def test_a_second_run_in_the_same_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK.split(), "--out", "r"]) == 0
    before = {path: path.read_bytes() for path in Path("r").iterdir()}
    with locked(Path("r")):
        text = error(capsys, "train", "--resume", "r")
    assert text.startswith(f"spat: r is in use by process {os.getpid()} on ")
    assert text.endswith("; wait for it to end, or stop it first.")
    assert "r already exists; choose another --out" in error(capsys, *QUICK.split(), "--out", "r")
    assert {path: path.read_bytes() for path in Path("r").iterdir()} == before


def test_damaged_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    """One flipped byte in each, and what is said of the newest."""
    assert main([*QUICK.split(), "--out", "r", "--save-every", "1step"]) == 0
    for path in Path("r").glob("checkpoint-*"):
        whole = bytearray(path.read_bytes())
        whole[-9] ^= 4
        path.write_bytes(whole)
    newest = max(Path("r").glob("checkpoint-*"))
    assert error(capsys, "train", "--resume", "r") == (
        f"spat: no whole checkpoint in r: {newest} was altered after it was written: "
        "its checksum does not match."
    )


@pytest.mark.parametrize("text", ["", "{", '{"settings": 3}', "[]", '{"settings": {"seed": "x"}}'])
def test_damaged_settings(capsys: pytest.CaptureFixture[str], text: str) -> None:
    Path("r").mkdir()
    (Path("r") / "settings.json").write_text(text)
    said = error(capsys, "train", "--resume", "r")
    assert "settings.json is not a whole settings file" in said or "seed must be" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_standard_output_on_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "spat", "list", "attack"]
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == "spat: could not write the output: No space left on device.\n"
