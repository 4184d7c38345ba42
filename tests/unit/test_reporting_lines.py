"""Events in words, and how little of an event is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spat.records import Event
from spat.reporting.lines import Narrator
from spat.reporting.wording import duration, listing

START = {
    "settings": {"model": "small-cnn", "defence": "spat", "data": "mnist-mini"},
    "train": 4500,
    "validation": 500,
    "parameters": 312202,
    "device": "cpu",
    "precision": "float32",
    "steps_per_epoch": 36,
    "epochs": 20,
}
STEP = {
    "epoch": 3,
    "epochs": 20,
    "step": 80,
    "steps": 720,
    "lr": 0.1,
    "loss": 1.23456,
    "term.acc": 0.75,
    "term.rob": 0.125,
    "images_per_s": 1834.4,
    "eta_s": 252,
}
EPOCH = {
    **STEP,
    "val_clean": 0.9725,
    "val_robust": 0.781,
    "val_attack": "pgd-10 eps 0.3",
    "best": True,
    "seconds": 12.0,
}
ATTACK = {"attack": "cw", "done": 250, "n": 987, "held": 231, "seconds": 3.0, "eta_s": 8.8}
WAVE = {"n": 64, "of": 1000, "worst": 0.4375, "low": 0.323, "high": 0.5591, "eta_s": 62.0}
KINDS = ("start", "step", "epoch", "checkpoint", "note", "end", "attack", "wave")


def said(kind: str, values: dict[str, Any]) -> str | None:
    line = Narrator()(Event(kind, values, 0.0))
    return line and line.text


def test_each_event_in_words() -> None:
    assert said("start", START) == (
        "training small-cnn with spat on mnist-mini: 4,500 training images, "
        "500 validation images, 312,202 parameters, cpu float32, 20 epochs of 36 steps"
    )
    assert said("step", STEP) == (
        "epoch  3/20  step  80/720  loss 1.235 (acc 0.75, rob 0.125)  "
        "1,834 images/s  4 min 12 s left"
    )
    assert said("epoch", EPOCH) == (
        "epoch  3/20  loss 1.235 (acc 0.75, rob 0.125)  "
        "validation: clean 97.2%, pgd-10 eps 0.3 78.1%  lr 0.1  1,834 images/s  best so far"
    )
    assert said("attack", ATTACK) == "cw: image 250/987, 231 held, 8.8 s left"
    assert said("attack", {**ATTACK, "done": 987, "held": 900, "seconds": 11.6}) == (
        "cw: 900 held of 987 attacked images, 12 s"
    )
    assert said("note", {"text": "eps grows until epoch 3"}) == "eps grows until epoch 3"
    assert said("end", {"epochs": 20, "seconds": 252.2}) == "trained 20 epochs in 4 min 12 s"


def test_the_time_left_and_the_checkpoint_are_remembered() -> None:
    narrator = Narrator()
    narrator(Event("step", STEP))
    line = narrator(Event("epoch", EPOCH))
    assert line is not None
    assert line.text.endswith("4 min 12 s left  best so far")
    assert narrator(Event("checkpoint", {"path": "runs/a/checkpoint-80", "step": 80})) is None
    line = narrator(Event("end", {"step": 80, "seconds": 28, "stopped": True}))
    assert line is not None
    assert line.text == "stopped at step 80 after 28 s; go on from runs/a/checkpoint-80"


def test_a_wave_says_how_sure_the_worst_case_is() -> None:
    assert said("wave", WAVE) == (
        "image   64/1000: worst case 43.8% (95% interval 32.3% to 55.9%, \u00b111.8 pp), "
        "1 min 02 s left"
    )
    assert said("wave", {"n": 64, "of": 1000, "worst": 0.5}) == "image   64/1000: worst case 50.0%"


def test_attacks_on_one_wave_of_many_pass() -> None:
    whole = {"attack": "fgsm", "done": 3, "n": 3, "held": 2}
    for values, lasting in ((whole, True), ({**whole, "wave": 7}, False)):
        line = Narrator()(Event("attack", values))
        assert line is not None
        assert line.lasting is lasting


def test_only_steps_and_unfinished_attacks_pass() -> None:
    lasting = {kind: Narrator()(Event(kind, {})) for kind in KINDS}
    assert {kind for kind, line in lasting.items() if line and not line.lasting} == {
        "step",
        "attack",
    }
    finished = Narrator()(Event("attack", {"done": 3, "n": 3}))
    assert finished is not None
    assert finished.lasting


def test_without_a_validation_split_none_is_claimed() -> None:
    values = {**EPOCH, "val_clean": None, "val_robust": None, "val_attack": None}
    assert "validation" not in str(said("epoch", values))


def test_a_robust_accuracy_is_never_bare() -> None:
    values = {"epoch": 1, "val_robust": 0.5, "val_attack": None}
    assert said("epoch", values) == "epoch 1  validation: an attack that was not named 50.0%"


def test_text_from_outside_cannot_move_the_cursor_or_break_the_line() -> None:
    assert said("note", {"text": "a\x1b[2Jb\r\nc"}) == "a [2Jb  c"


def test_nan_is_shown_and_infinite_time_is_not() -> None:
    shown = said("step", {"step": 1, "loss": float("nan"), "eta_s": float("inf")})
    assert shown == "step 1  loss nan"


SOME = st.sampled_from(["", "a", "\x1b[2J\u00e9\n", [], {"a": 1}, True, None, 0, -3]) | st.floats()
KEYS = st.sampled_from([*START, *EPOCH, *ATTACK, "path", "text", "stopped"])


@settings(deadline=None)
@given(st.sampled_from([*KINDS, "unheard of"]), st.dictionaries(KEYS, SOME, max_size=12))
def test_missing_keys_and_odd_values_never_crash(kind: str, values: dict[str, Any]) -> None:
    text = said(kind, values)
    assert text is None or text.isprintable()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (252, "4 min 12 s"),
        (7500, "2 h 05 min"),
        (np.float32(3), "3.0 s"),
        (-1, ""),
        (float("nan"), ""),
        (None, ""),
    ],
)
def test_durations(seconds: Any, shown: str) -> None:
    assert duration(seconds) == shown


def test_lists_in_words() -> None:
    assert [listing(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
