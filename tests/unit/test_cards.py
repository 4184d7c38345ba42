"""Cards: every claim is checked, every tampering gets its sentence, other rounding is no lie."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spat
from conftest import Linear
from spat import tensorfile
from spat.cards import Card, Check, Evidence, check_card, read_card
from spat.cards.card import checksum
from spat.cards.verify import verdict
from spat.errors import UserError
from spat.records import Outcomes, Record
from spat.results import measured, write_json

NAMES = ("cat", "dog", "elk")
EPS = 0.05


@dataclass
class Evaluated:
    """An evaluation with its evidence on disk; `forge` rewrites it as a liar would."""

    model: Linear
    x: Tensor
    y: Tensor
    outcomes: Outcomes
    card: Path
    images: Path

    def check(self, **other: Any) -> list[Check]:
        card, unaltered = read_card(self.card)
        x, y = other.get("x", self.x)[card.ids], other.get("y", self.y)[card.ids]
        with tensorfile.opened(self.images) as rows:
            return check_card(card, unaltered, other.get("model", self.model), x, y, rows)

    def failing(self, **other: Any) -> str:
        """The one check that fails, as it is printed."""
        (failed,) = [check for check in self.check(**other) if check.level == "fails"]
        return f"{failed.name}: {failed.says}"

    def forge(self, change: Callable[[Any], None]) -> None:
        """Change the card and make its checksum fit."""
        saved = json.loads(self.card.read_text())
        del saved["sha256"]
        change(saved)
        write_json(self.card, {**saved, "sha256": checksum(saved)})

    def forge_images(self, change: Callable[[dict[str, Tensor]], None]) -> None:
        """Change the images; make their digest fit, and the card's of them."""
        tensors, meta = tensorfile.read(self.images)
        change(tensors)
        digest = tensorfile.write(self.images, tensors, meta)
        self.forge(lambda card: card["adversarial"].update(sha256=digest))


def record_of(model: Linear, outcomes: Outcomes) -> Record:
    return Record(
        settings={"data": "three", "model": "linear"},
        settings_hash="0",
        eps=outcomes.eps,
        norm=outcomes.norm,
        measured=measured(outcomes),
        seeds={"evaluation": 0},
        weights_sha256=tensorfile.digest(model.state_dict()),
        commit="c",
        version="v",
        hardware={},
        seconds={},
        doubts=("a doubt",),
        attacks={"fgsm": "PGD(...)"},
    )


def evaluate(
    folder: Path,
    model: Linear,
    x: Tensor,
    y: Tensor,
    eps: float = EPS,
    norm: Any = "linf",
    attacks: str = "fgsm pgd-3",
) -> Evaluated:
    evidence = Evidence(folder / "card.json", folder / "images.safetensors", each=True)
    evidence.begin(x, y, attacks.split())
    outcomes = spat.evaluate(
        model,
        x,
        y,
        attacks,
        eps=eps,
        norm=norm,
        batch_size=7,
        sink=evidence.hear,
        keep=evidence.keep,
    )
    evidence.finish(record_of(model, outcomes), outcomes, x, y, NAMES)
    assert evidence.card is not None
    assert evidence.images is not None
    return Evaluated(model, x, y, outcomes, evidence.card, evidence.images)


@pytest.fixture
def evaluated(tmp_path: Path) -> Evaluated:
    rng = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 16, generator=rng)
    model = Linear(weight - weight.mean(1, keepdim=True), torch.zeros(3))
    x = 0.3 + 0.4 * torch.rand(40, 1, 4, 4, generator=rng)
    y = model(x).argmax(1)
    y[:4] = (y[:4] + 1) % 3
    return evaluate(tmp_path, model, x, y)


def broken_place(found: Evaluated, attack: str = "fgsm") -> int:
    return int(found.outcomes.attacks[attack].broken.nonzero()[0][0])


def test_a_true_card_is_verified(evaluated: Evaluated) -> None:
    checks = evaluated.check()
    assert {check.level for check in checks} == {"ok"}
    lost = int((evaluated.outcomes.correct & ~evaluated.outcomes.worst).sum())
    assert 0 < lost < 36
    assert f"{lost} of {lost} claimed breaks are misclassified" in {c.says for c in checks}
    card, unaltered = read_card(evaluated.card)
    assert unaltered
    worst = evaluated.outcomes.accuracy("worst")
    assert verdict(card, checks).startswith("VERIFIED: worst case over fgsm, pgd-3, eps 0.05 (Linf")
    assert f"n 40: {100 * worst:.1f}% hold" in verdict(card, checks)


def test_l2_is_verified_too(tmp_path: Path, evaluated: Evaluated) -> None:
    found = evaluate(tmp_path / "l2", evaluated.model, evaluated.x, evaluated.y, 0.4, "l2")
    assert found.outcomes.attacks["pgd-3"].broken.any()
    assert {check.level for check in found.check()} == {"ok"}


def test_the_numbers_are_those_of_the_outcomes(evaluated: Evaluated) -> None:
    card, _ = read_card(evaluated.card)
    outcomes = evaluated.outcomes
    assert [row["attack"] for row in card.measured] == ["clean", "fgsm", "pgd-3", "worst"]
    for row in card.measured:
        assert row["held"] == int(outcomes.held(row["attack"]).sum())
        assert row["accuracy"] == pytest.approx(outcomes.accuracy(row["attack"]), abs=1e-6)
        assert row["interval_95"][0] < row["accuracy"] < row["interval_95"][1]
        assert (row["n"], row["eps"]) == (40, 0.0 if row["attack"] == "clean" else EPS)
    for label, own in enumerate(card.classes):
        mine = outcomes.labels == label
        assert (own["n"], own["held"]) == (mine.sum(), outcomes.worst[mine].sum())
    assert card.worst_class == min(card.classes, key=lambda c: c["held"] / c["n"])
    assert sum(map(sum, card.confusion["images"].values())) == 40
    held = int(outcomes.robust("fgsm").sum())  # what the copy said of these was asked too
    assert card.work["fgsm"]["forwards"] == 36 * 2 + held
    assert card.work["pgd-3"]["backwards"] == 36 * 3
    assert card.doubts == ["a doubt"]
    assert card.outcomes().held("worst").tolist() == outcomes.worst.tolist()


def test_a_sentence_never_goes_without_attack_eps_and_n(evaluated: Evaluated) -> None:
    says = read_card(evaluated.card)[0].says
    assert says[0].startswith("without attack, n 40: ")
    assert all(", eps 0.05 (Linf), n 40: " in sentence for sentence in says[1:])


def test_the_file_holds_the_image_of_the_first_attack_that_broke(evaluated: Evaluated) -> None:
    tensors, meta = tensorfile.read(evaluated.images)
    outcomes = evaluated.outcomes
    fgsm, pgd = (outcomes.attacks[name].broken for name in ("fgsm", "pgd-3"))
    number = tensors["attack"].numpy()
    assert meta["attacks"] == ["fgsm", "pgd-3"]
    assert (number[fgsm] == 0).all()
    assert (number[pgd & ~fgsm] == 1).all()
    assert (number[~outcomes.correct] == -1).all()
    assert torch.equal(tensors["x_adv"][:4], evaluated.x[:4])
    first = torch.from_numpy(fgsm)
    assert torch.equal(tensors["x_adv"][first], tensors["x_adv: fgsm"][first])
    assert tensors["ids"].tolist() == list(range(40))


def flip_digit(path: Path) -> None:
    text = path.read_text()
    place = text.index('"held": ') + len('"held": ')
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])


def test_a_flipped_digit_is_noticed(evaluated: Evaluated) -> None:
    flip_digit(evaluated.card)
    failed = [check.name for check in evaluated.check() if check.level == "fails"]
    assert failed == ["card", "numbers"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("measured", 3, "accuracy"), 0.999),
        (("measured", 1, "interval_95", 0), 0.1),
        (("measured", 2, "eps"), 0.1),
        (("worst_class", "class"), "cat or dog"),
        (("classes", 0, "held"), 99),
        (("confusion", "images", "dog", 0), 99),
        (("says", 3), "robust accuracy 99%"),
        (("threat", "eps_says"), "8/255"),
        (("data", "n"), 10_000),
    ],
)
def test_a_number_that_does_not_follow_is_named(
    evaluated: Evaluated, place: tuple[Any, ...], value: Any
) -> None:
    def change(card: Any) -> None:
        for step in place[:-1]:
            card = card[step]
        card[place[-1]] = value

    evaluated.forge(change)
    told = evaluated.failing()
    assert told.startswith(f"numbers: the card says {value!r} at ")
    assert str(place[-1] if isinstance(place[-1], str) else place[0]) in told.replace("data", "n")


def test_other_weights_are_noticed(evaluated: Evaluated) -> None:
    other = Linear(evaluated.model.weight.detach() * 1.001, torch.zeros(3))
    assert evaluated.failing(model=other).startswith("weights: these weights have sha256 ")


def test_other_test_images_are_noticed(evaluated: Evaluated) -> None:
    x = evaluated.x.clone()
    x[7, 0, 0, 0] += 1 / 255
    told = "test images: the test images or their labels are not those of the card"
    assert evaluated.failing(x=x) == told
    y = evaluated.y.clone()
    y[7] = (y[7] + 1) % 3
    assert evaluated.failing(y=y) == told


def test_a_swapped_image_is_noticed(evaluated: Evaluated) -> None:
    """In the bytes, in a file with a true digest, and with the card made to fit."""
    whole = evaluated.images.read_bytes()
    place = broken_place(evaluated)
    evaluated.images.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(UserError, match="altered after it was written"):
        evaluated.check()
    evaluated.images.write_bytes(whole)
    tensors, meta = tensorfile.read(evaluated.images)
    tensors["x_adv"][place] = evaluated.x[place]
    tensorfile.write(evaluated.images, tensors, meta)
    told = "adversarial file: the file of adversarial images is not the one that the card names"
    assert evaluated.failing() == told
    evaluated.forge_images(lambda tensors: None)
    failed = {check.name: check.says for check in evaluated.check() if check.level == "fails"}
    assert failed.keys() == {"breaks", "adversarial predictions"}
    assert failed["breaks"].endswith(f"claimed breaks are classified rightly: image {place}")


def test_an_image_beyond_eps_is_noticed(evaluated: Evaluated) -> None:
    place = broken_place(evaluated)
    change = evaluated.x[place].clone()

    def push(tensors: dict[str, Tensor]) -> None:
        further = change + (tensors["x_adv"][place] - change) * 1.001
        tensors["x_adv"][place] = further

    evaluated.forge_images(push)
    told = evaluated.failing()
    assert told.startswith("threat set: 1 images are further than eps = 0.05 (linf), up to 0.05005")
    assert told.endswith(f": image {place}")


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan")])
def test_pixels_outside_the_box_are_noticed(evaluated: Evaluated, value: float) -> None:
    evaluated.forge_images(lambda tensors: tensors["x_adv"][5, 0, 0].fill_(value))
    failed = {check.name: check.says for check in evaluated.check() if check.level == "fails"}
    assert failed["threat set"] == "1 images have pixels outside [0, 1] or NaN: image 5"


def test_each_attacks_own_images_are_checked(evaluated: Evaluated) -> None:
    place = broken_place(evaluated, "pgd-3")

    def undo(tensors: dict[str, Tensor]) -> None:
        tensors["x_adv: pgd-3"][place] = evaluated.x[place]

    evaluated.forge_images(undo)
    assert evaluated.failing().startswith("breaks: pgd-3: 1 of ")


def test_a_break_that_nobody_made_is_noticed(evaluated: Evaluated) -> None:
    """The card claims that one more image is broken, its numbers made to fit by counting anew."""
    place = int(evaluated.outcomes.worst.nonzero()[0][0])
    wrong = (int(evaluated.outcomes.labels[place]) + 1) % 3
    evaluated.outcomes.attacks["fgsm"].predicted[place] = wrong
    evaluated.outcomes.attacks["fgsm"].broken[place] = True
    kept = json.loads(evaluated.card.read_text())["adversarial"]
    record = record_of(evaluated.model, evaluated.outcomes)
    finish = Evidence(evaluated.card).finish
    finish(record, evaluated.outcomes, evaluated.x, evaluated.y, NAMES)
    evaluated.forge(lambda card: card.update(adversarial=kept))
    told = "adversarial file: the card and the file of adversarial images differ in what is broken"
    assert evaluated.failing() == told


def test_a_truncated_file_is_told(evaluated: Evaluated) -> None:
    whole = evaluated.images.read_bytes()
    evaluated.images.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is not a whole safetensors file"):
        evaluated.check()
    text = evaluated.card.read_text()
    evaluated.card.write_text(text[: len(text) // 2])
    with pytest.raises(UserError, match="is no whole JSON file"):
        read_card(evaluated.card)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda card: card.update(kind="a poem"), "is not an evaluation card of spat"),
        (lambda card: card.update(schema=9), "has schema 9 and this spat reads 1"),
        (lambda card: card.pop("doubts"), "is not a whole card: it has no 'doubts'"),
        (lambda card: card.update(more=1), "is not a card of this spat: it has a 'more'"),
        (lambda card: card.update(examples=3), "a section cannot be read"),
        (lambda card: card["examples"]["ids"].pop(), "are not rows of numbers"),
        (lambda card: card["examples"]["clean"].__setitem__(0, "x"), "are not rows of numbers"),
        (lambda card: card["examples"]["ids"].__setitem__(0, 1), "does not say which images"),
        (lambda card: card["threat"].update(norm="l7"), "names no threat model"),
    ],
)
def test_what_is_no_card_is_told(
    evaluated: Evaluated, change: Callable[[Any], None], text: str
) -> None:
    evaluated.forge(change)
    with pytest.raises(UserError, match=text):
        read_card(evaluated.card)


class Nudged(Linear):
    """The same weights on a machine that rounds otherwise, in favour of the first class."""

    nudge = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.nudge * torch.tensor([1.0, 0.0, 0.0])


@pytest.mark.parametrize(("nudge", "level"), [(0.0, "ok"), (1e-5, "tie"), (1e-2, "fails")])
def test_another_machines_rounding_is_a_tie(tmp_path: Path, nudge: float, level: str) -> None:
    """FGSM takes a margin m to m - eps |w|_1: here to just below zero."""
    weight = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]])
    x = torch.tensor([[[[0.55, 0.45]]], [[[0.55, 0.45]]]])
    model = Nudged(weight, torch.tensor([0.0, 0.0, -9.0]))  # 9 is the largest of an image's logits
    found = evaluate(tmp_path, model, x, torch.tensor([0, 0]), eps=0.05 + 1e-7)
    assert found.outcomes.attacks["fgsm"].broken.all()
    model.nudge = nudge
    checks = {check.name: check for check in found.check()}
    assert checks["breaks"].level == level
    assert checks["clean predictions"].level == "ok"
    if level == "tie":
        assert "2 of 2 are ties in rounding (at most 1." in checks["breaks"].says
        card, _ = read_card(found.card)
        assert "VERIFIED, with ties in rounding (breaks" in verdict(card, list(checks.values()))


def test_a_subset_in_any_order_is_filed_in_test_order(evaluated: Evaluated) -> None:
    """As an evaluation leaves it that looks at images in a random order and stops early."""
    some = np.array([31, 2, 17, 5, 39])
    columns = {
        name: type(a)(a.predicted[some], a.broken[some], a.distance[some], a.step[some])
        for name, a in evaluated.outcomes.attacks.items()
    }
    all_of_it = evaluated.outcomes
    few = Outcomes(some, all_of_it.labels[some], all_of_it.clean[some], columns, EPS, "linf")
    folder = evaluated.card.parent / "few"
    evidence = Evidence(folder / "card.json", folder / "images.safetensors")
    evidence.begin(evaluated.x, evaluated.y, ["fgsm", "pgd-3"])
    tensors, _ = tensorfile.read(evaluated.images)
    for label in ("fgsm", "pgd-3"):
        index = torch.from_numpy(all_of_it.correct.nonzero()[0])
        predicted = torch.from_numpy(all_of_it.attacks[label].predicted)[index]
        evidence.keep(label, index, tensors[f"x_adv: {label}"][index], predicted)
    evidence.finish(record_of(evaluated.model, few), few, evaluated.x, evaluated.y, NAMES)
    kept, _ = tensorfile.read(folder / "images.safetensors")
    assert kept["ids"].tolist() == sorted(some.tolist())
    assert torch.equal(kept["x_adv"], tensors["x_adv"][np.sort(some)])
    part = Evaluated(
        evaluated.model,
        evaluated.x,
        evaluated.y,
        few,
        folder / "card.json",
        folder / "images.safetensors",
    )
    assert {check.level for check in part.check()} == {"ok"}


def test_breaks_whose_images_are_lost_are_told(evaluated: Evaluated) -> None:
    folder = evaluated.card.parent / "late"
    evidence = Evidence(None, folder / "images.safetensors")
    evidence.begin(evaluated.x, evaluated.y, ["fgsm", "pgd-3"])
    outcomes, model = evaluated.outcomes, evaluated.model
    with pytest.raises(UserError, match=r"the images of \d+ breaks were not handed over"):
        evidence.finish(record_of(model, outcomes), outcomes, evaluated.x, evaluated.y, NAMES)
    assert list(folder.iterdir()) == []


def test_a_card_tells_the_stages_of_an_attack(evaluated: Evaluated, tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    folder.mkdir()
    staged = evaluate(folder, evaluated.model, evaluated.x, evaluated.y, attacks="fgsm aa-20")
    assert {check.level for check in staged.check()} == {"ok"}
    card, _ = read_card(staged.card)
    assert "aa-20: apgd-t" in [row["attack"] for row in card.measured]
    assert card.outcomes().broken_by == staged.outcomes.broken_by


def test_the_document_names_every_field_in_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "card.md").read_text()
    table = text.partition("## The fields")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    wanted = [field.name for field in fields(Card)] + ["sha256"]
    assert sorted(told) == sorted(wanted)
    assert told == sorted(told, key=wanted.index)
