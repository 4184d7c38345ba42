"""From an evaluation to its card and back, as a user meets them on the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spat.cli.main import main

pytestmark = pytest.mark.usefixtures("own_place")


def evaluate(*more: str) -> int:
    words = "evaluate mine.py:make --data npz --data.path own.npz --eps 8/255 --attacks fgsm pgd-2"
    return main([*words.split(), "--card", "out/card.json", *more])


def saved() -> int:
    return evaluate("--save-adversarial", "out/images.safetensors")


def test_a_card_is_verified_where_it_was_made_and_elsewhere(
    own_place: Path,
    capsys: pytest.CaptureFixture[str],
    mistake: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert saved() == 0
    assert "check it with: spat verify out/card.json" in capsys.readouterr().out
    assert sorted(p.name for p in (own_place / "out").iterdir()) == [
        "card.json",
        "images.safetensors",
    ]
    assert main(["verify", "out/card.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok     ") for line in lines[:-1])
    assert lines[-1].startswith("VERIFIED: worst case over fgsm, pgd-2, eps 8/255 (Linf), n 40: ")
    elsewhere = own_place / "elsewhere"
    shutil.move(own_place / "out", elsewhere)
    for name in ("mine.py", "own.npz"):
        shutil.move(own_place / name, elsewhere / name)
    monkeypatch.chdir("/")
    told = mistake("verify", str(elsewhere / "card.json"))
    assert "own.npz" in told
    flags = ["--data.path", str(elsewhere / "own.npz"), "--model", f"{elsewhere}/mine.py:make"]
    assert main(["verify", str(elsewhere / "card.json"), *flags]) == 0


def test_a_claim_that_fails_has_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert saved() == 0
    text = Path("out/card.json").read_text()
    Path("out/card.json").write_text(text.replace('"n": 40', '"n": 41', 1))
    capsys.readouterr()
    assert main(["verify", "out/card.json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fails  card: the card was altered after it was written: checksum"
    assert lines[1].startswith("fails  numbers: the card says 41 at measured[0].n")
    assert lines[-1].startswith("NOT VERIFIED: 2 of ")


def test_mistakes_get_one_sentence(mistake: Callable[..., str]) -> None:
    assert "there is no file none.json" in mistake("verify", "none.json")
    assert evaluate() == 0
    told = mistake("verify", "out/card.json")
    assert "names no adversarial images, so its breaks cannot be checked" in told
    words = "evaluate mine.py:make --data npz --data.path own.npz --eps 8/255 --attacks fgsm"
    command = [*words.split(), "--card", "out/card.json"]
    assert "out/card.json already exists; choose another --card" in mistake(*command)
    assert "--save-each says what --save-adversarial" in mistake(*words.split(), "--save-each")
    Path("out/card.json").unlink()
    assert saved() == 0
    Path("out/images.safetensors").unlink()
    told = mistake("verify", "out/card.json")
    assert "there is no file out/images.safetensors" in told
    card = json.loads(Path("out/card.json").read_text())
    assert card["data"]["images_sha256"] != card["model"]["weights_sha256"]


def test_an_evaluation_that_fails_leaves_nothing(
    own_place: Path, mistake: Callable[..., str]
) -> None:
    code = (own_place / "mine.py").read_text()
    (own_place / "mine.py").write_text(code.replace("classes))", "classes), nn.Softmax(1))"))
    words = "evaluate mine.py:make --data npz --data.path own.npz --eps 8/255 --attacks fgsm"
    images = ["--save-adversarial", "kept/images.safetensors"]
    assert "probabilities" in mistake(*words.split(), *images)
    assert not (own_place / "kept").exists()


def test_a_verified_card_makes_a_robustbench_entry(mistake: Callable[..., str]) -> None:
    assert saved() == 0
    told = mistake("verify", "out/card.json", "--entry", "entry.json")
    assert "needs the attack aa on all 40 test images; this card has fgsm, pgd-2 on 40" in told
    words = "evaluate mine.py:make --data npz --data.path own.npz --eps 128/255 --attacks fgsm aa"
    more = ["--card", "aa.json", "--save-adversarial", "aa.safetensors"]
    assert main([*words.split(), *more, "--n", "10"]) == 0
    assert "on all 40" in mistake("verify", "aa.json", "--entry", "entry.json")
    for name in ("aa.json", "aa.safetensors"):
        Path(name).unlink()
    assert main([*words.split(), *more]) == 0
    assert main(["verify", "aa.json", "--entry", "entry.json"]) == 0
    made, card = (json.loads(Path(name).read_text()) for name in ("entry.json", "aa.json"))
    shares = {row["attack"]: f"{100 * row['held'] / 40:.2f}" for row in card["measured"]}
    assert made["eps"] == "128/255"
    assert made["clean_acc"] == shares["clean"]
    assert made["autoattack_acc"] == shares["aa"]
    assert made["reported"] == shares["worst"]
    assert "already exists" in mistake("verify", "aa.json", "--entry", "entry.json")
