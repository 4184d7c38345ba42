"""The page: whole, self-contained, escaped, reproducible, and never overclaiming."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from spat.records import Attacked, Event, Outcomes, Record
from spat.reporting import Picture, page
from spat.results import measured

VOID = {"meta", "img", "circle", "line", "path", "polyline", "rect"}
EVIL = "<b>\"'&\x00\x1b\ud800"


def outcomes(labels: list[int], clean: list[int], **attacks: list[int]) -> Outcomes:
    y, z = np.array(labels, np.int64), np.array(clean, np.int64)
    told = {}
    for name, found in attacks.items():
        p = np.array(found, np.int64)
        told[name] = Attacked(
            p, (z == y) & (p != y), np.zeros(len(y), np.float32), -np.ones_like(y)
        )
    return Outcomes(np.arange(len(y)), y, z, told, 8 / 255, "linf")


def recorded(found: Outcomes, **changes: object) -> Record:
    record = Record(
        settings={"data": "mnist-mini", "model": "small-cnn", "defence": "spat", "epochs": 2},
        settings_hash="0123abcd",
        eps=found.eps,
        norm=found.norm,
        measured=measured(found),
        seeds={"run": 7},
        weights_sha256="ff" * 32,
        commit="c0ffee",
        version="0.1.0",
        hardware={"cpu": "A CPU", "cores": 2},
        seconds={"training": 252.0},
    )
    return replace(record, **changes)  # type: ignore[arg-type]


FOUND = outcomes([0, 0, 0, 1, 1], [0, 0, 0, 1, 0], pgd=[0, 1, 2, 1, 0], cw=[0, 0, 2, 1, 0])
EVENTS = [
    Event("start", {"settings": {}}, 1_700_000_000.0),
    Event(
        "epoch",
        {"epoch": 1, "loss": 1.0, "val_clean": 0.5, "val_robust": 0.2, "val_attack": "pgd"},
        1_700_000_060.0,
    ),
]
PICTURE = Picture(np.zeros((1, 2, 2)), np.ones((1, 2, 2)), "a", "a", "b", "pgd")


class Outline(HTMLParser):
    """Checks that every element is closed in order, and keeps what a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.seen.append(data)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.seen))


def full() -> str:
    return page(recorded(FOUND), FOUND, EVENTS, [PICTURE], ["zero", "one", "two"])


def test_the_page_is_whole_and_self_contained() -> None:
    outline = Outline(full())
    assert all(link.startswith("data:image/png;base64,") for link in outline.links)
    assert len(outline.links) == 3
    assert len(set(outline.ids)) == len(outline.ids)
    for foreign in ("<script", "http:", "https:", "url(", "@import"):
        assert foreign not in full()


def test_the_same_inputs_give_the_same_bytes() -> None:
    assert full() == full()
    full().encode("utf-8")


def test_the_statement_names_threat_numbers_attacks_and_limits() -> None:
    text = Outline(full()).text
    assert (
        "The model small-cnn was trained on mnist-mini with the defence spat for 2 epochs" in text
    )
    assert "then measured on n = 5 test images." in text
    assert "change each pixel by at most eps = 8/255 (L∞)" in text
    assert "Unattacked, 80.0% are classified rightly; 40.0% (95% interval 11.8% to 76.9%)" in text
    assert "withstand every one of the attacks pgd and cw" in text
    assert "accuracy under attack is an upper bound" in text


def test_the_headline_robust_accuracy_is_never_bare() -> None:
    tiles = re.findall(r'<div class="tile">(.*?)</div>', full())
    assert len(tiles) == 2
    assert "over pgd and cw, eps\u00a08/255\u00a0(L∞), n\u00a0=\u00a05" in tiles[1]


def test_provenance_is_all_there() -> None:
    text = Outline(full()).text
    for fact in ("c0ffee", "ff" * 32, "0123abcd", "A CPU", "4 min 12 s", "none was recorded"):
        assert fact in text
    assert "2023-11-14 22:13 UTC" in text
    assert "seed: run 7" in text


def test_doubts_stand_at_the_top() -> None:
    shown = page(recorded(FOUND, doubts=("the gradients vanish <here>",)), FOUND)
    assert shown.index("the gradients vanish &lt;here&gt;") < shown.index("<h2>Result")
    assert "Reasons to doubt" not in full()


def test_attacks_are_told_with_their_settings() -> None:
    shown = page(recorded(FOUND, attacks={"pgd": "PGD(steps=40)"}), FOUND)
    assert "PGD(steps=40)" in Outline(shown).text


def test_everything_from_outside_is_escaped() -> None:
    evil = outcomes([0, 1], [0, 1], **{EVIL: [1, 1]})
    record = recorded(evil, settings={EVIL: EVIL, "model": EVIL}, commit=EVIL, doubts=(EVIL,))
    record = replace(record, hardware={EVIL: EVIL}, attacks={EVIL: EVIL}, norm=EVIL)
    black = np.zeros((1, 2, 2))
    events = [Event("epoch", {"val_robust": 0.1, "val_attack": EVIL}, 0.0)]
    shown = page(record, evil, events, [Picture(black, black, *[EVIL] * 4)], [EVIL, EVIL])
    Outline(shown).text.encode("utf-8")
    shown.encode("utf-8")
    assert "<b>&quot;" not in shown
    assert "\x00" not in shown
    assert "\x1b" not in shown
    assert shown.count("&lt;b&gt;&quot;&#x27;&amp;") > 20


def test_the_confusion_is_that_of_the_worst_case() -> None:
    rows = re.findall(
        r'<tr><th scope="row">(\w+)</th>((?:<td class="[a-z]+"[^>]*>.*?</td>)+)', full()
    )
    counts = {name: re.findall(r">([^<]+)</td>", cells) for name, cells in rows}
    assert counts == {"zero": ["1", "1", "1"], "one": ["1", "1", "·"], "two": ["·"] * 3}
    assert 'style="--share:0.333" title="33.3%"' in full()


def test_the_weakest_class_and_one_never_predicted_are_named() -> None:
    found = outcomes([0, 0, 1, 1], [0, 0, 1, 1], pgd=[0, 0, 0, 2])
    text = Outline(page(recorded(found), found, (), (), ["a", "b", "c"])).text
    assert "The weakest class is b: of its 2 images 0.0% hold in the worst case over pgd" in text
    assert "Never predicted: b." in text
    assert "a 2 100.0 100.0 34.2 \u2013 100.0" in text
    assert "b 2 100.0 0.0 0.0 \u2013 65.8" in text


def test_classes_without_images_have_no_accuracy_and_no_error() -> None:
    found = outcomes([3], [3], pgd=[3])
    text = Outline(page(recorded(found), found)).text
    assert "The weakest class is 3: of its 1 images 100.0% hold" in text
    assert "Never predicted: 0, 1 and 2." in text


@pytest.mark.parametrize(("attacked", "shown"), [(1, "0.0%"), (0, "100.0%")])
def test_one_image_that_breaks_or_holds(attacked: int, shown: str) -> None:
    found = outcomes([0], [0], pgd=[attacked])
    text = Outline(page(recorded(found), found)).text
    assert f"{shown} accuracy in the worst case over pgd" in text
    assert "measured on n = 1 test image." in text


def test_without_an_attack_nothing_is_said_about_robustness() -> None:
    found = outcomes([0, 1], [0, 1])
    text = Outline(page(recorded(found), found)).text
    assert "No attack was run, so nothing is said about robustness." in text
    assert "worst case" not in text


def test_a_model_that_was_only_measured_was_not_trained() -> None:
    shown = Outline(page(recorded(FOUND, settings={}, norm="l2"), FOUND)).text
    assert "A model was measured on n = 5 test images." in shown
    assert "a Euclidean length of at most eps = 8/255 (L2)" in shown
    assert "trained" not in shown
    assert "Robustness report" in shown


def test_many_classes_become_lists_of_the_weakest() -> None:
    labels = list(range(30)) * 2
    broken = [(label + 1) % 30 if label < 20 else label for label in labels]
    found = outcomes(labels, labels, pgd=broken)
    outline = Outline(page(recorded(found), found))
    assert "The 15 weakest of 30 classes" in outline.text
    assert "Most confused (worst case)" in outline.text
    assert "0 1 2 of 2" in outline.text


def test_parts_without_content_are_left_out() -> None:
    shown = page(recorded(FOUND), FOUND)
    assert re.findall("<h2>(.*?)</h2>", shown) == [
        "Result",
        "Class by class",
        "Settings",
        "Provenance",
    ]
    assert re.findall("<h2>(.*?)</h2>", full())[1:3] == ["Training", "Images under attack"]


def test_settings_read_as_they_are_given() -> None:
    given = {"eps": 8 / 255, "defence.attack.step_size": 2 / 255, "attacks": ["pgd-40", "cw"]}
    text = Outline(page(recorded(FOUND, settings={**given, "n": None}), FOUND)).text
    assert "eps 8/255" in text
    assert "defence.attack.step_size 2/255" in text
    assert "attacks pgd-40, cw" in text
    assert "n none" in text
