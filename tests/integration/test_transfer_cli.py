"""The black-box matrix from the command line: what models can be named, and the mistakes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spat.cli.main import main

pytestmark = pytest.mark.usefixtures("own_place")


def train(out: str, eps: str) -> None:
    words = "train --data npz --data.path own.npz --defence natural --model mine.py:make"
    more = "--epochs 1 --batch-size 10 --validation-images 4 --attacks fgsm"
    assert main([*words.split(), *more.split(), "--out", out, "--eps", eps]) == 0


def test_runs_weights_and_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Code without settings takes data and budget from the run it is compared with."""
    train("run", eps="0.1")
    capsys.readouterr()
    models = ["run", "run@last", "run/best.safetensors", "mine.py:make@run/best.safetensors"]
    words = ["transfer", "--source", "mine.py:make", "run", "--target", *models]
    assert main([*words, "--attacks", "fgsm", "pgd-2", "--n", "30", "--out", "m.csv"]) == 0
    shown = capsys.readouterr().out
    assert "fgsm, eps 0.1 (L\u221e), n = 30" in shown
    assert "pgd-2, eps 0.1 (L\u221e), n = 30" in shown
    with Path("m.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 4
    by = {(r["attack"], r["source"], r["target"]): r for r in rows}
    assert by["fgsm", "run", "run"]["white_box"] == "True"
    same = {by["fgsm", "run", name]["accuracy"] for name in models if name != "run@last"}
    assert len(same) == 1
    assert main([*words, "--out", "m.json"]) == 0
    saved = json.loads(Path("m.json").read_text())
    assert saved["attacks"]["run"].keys() == {"pgd-20"}
    assert len(saved["targets"]["run"]["attacks"]["pgd-20 from mine.py:make"]["predicted"]) == 40
    assert len(saved["matrix"]) == 8


def test_mistakes_get_one_sentence(own_place: Path, mistake: Callable[..., str]) -> None:
    train("a", eps="0.1")
    train("b", eps="0.2")
    both = ["transfer", "--source", "a", "--target", "b"]
    told = "b has eps 0.2 and a has 0.1: say which to use with --eps."
    assert told in mistake(*both)
    assert main([*both, "--eps", "0.1", "--attacks", "fgsm"]) == 0
    assert "arguments are required: --target" in mistake("transfer", "--source", "a")
    assert "there is no nowhere" in mistake(*both[:4], "nowhere")
    assert "there is no file" in mistake(*both[:4], "a@none.safetensors")
    assert "ends in .json or .csv, got m.txt" in mistake(*both, "--out", "m.txt")
    (own_place / "m.csv").write_text("precious")
    assert "m.csv already exists" in mistake(*both, "--out", "m.csv")
    assert (own_place / "m.csv").read_text() == "precious"
