"""The evaluation card: what was claimed, of which weights, on which images, by which attacks.

One JSON file with a version. Its numbers follow from the rows of its examples, which are in it too;
its checksum covers everything else, so that a slip of the hand is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from spat import tensorfile
from spat.cards.numbers import numbers
from spat.errors import UserError
from spat.records import Attacked, Ints, Outcomes, Record
from spat.results import read_json, write_json

KIND, SCHEMA = "spat evaluation card", 1
Section = Mapping[str, Any]


@dataclass(frozen=True)
class Card:
    """The sections in the order in which they are written; docs/card.md explains each."""

    kind: str
    schema: int
    says: Sequence[str]
    threat: Section
    measured: Sequence[Section]
    worst_class: Section
    classes: Sequence[Section]
    confusion: Section
    notes: Sequence[str]
    doubts: Sequence[str]
    attacks: Section
    how: Section
    work: Section
    data: Section
    model: Section
    adversarial: Section | None
    seeds: Section
    commit: str
    version: str
    hardware: Section
    seconds: Section
    settings_hash: str
    settings: Section
    examples: Section

    @property
    def ids(self) -> Ints:
        return np.asarray(self.examples["ids"], np.int64)

    def outcomes(self) -> Outcomes:
        """The rows as an evaluation has them; how far and when an image broke is not on a card."""
        labels, clean = (np.asarray(self.examples[k], np.int64) for k in ("labels", "clean"))
        stages = self.examples.get("stages", {})
        columns = {
            name: _column(labels, clean, np.asarray(predicted, np.int64), stages.get(name, {}))
            for name, predicted in self.examples["predicted"].items()
        }
        return Outcomes(self.ids, labels, clean, columns, self.threat["eps"], self.threat["norm"])

    def to_json(self) -> dict[str, Any]:
        content = json.loads(json.dumps(asdict(self)))
        return {**content, "sha256": checksum(content)}


def make_card(
    record: Record,
    outcomes: Outcomes,
    *,
    names: Sequence[str],
    data: Section,
    work: Section,
    weights: str | None,
    adversarial: Section | None,
) -> Card:
    """A card of an evaluation.

    names: of the classes
    data: the data set's name and the digest of the images that were evaluated
    work: by attack, the examples that went forward and back through the model
    weights: the file they were read from
    adversarial: the file of adversarial images, if they were kept
    """
    settings = record.settings
    own = {key: value for key, value in settings.items() if key.startswith("model.")}
    return Card(
        kind=KIND,
        schema=SCHEMA,
        notes=record.notes,
        doubts=record.doubts,
        attacks=record.attacks,
        how=record.how,
        work=work,
        data=data,
        model={
            "name": settings["model"],
            "settings": own,
            "weights": weights,
            "weights_sha256": record.weights_sha256,
        },
        adversarial=adversarial,
        seeds=record.seeds,
        commit=record.commit,
        version=record.version,
        hardware=record.hardware,
        seconds=record.seconds,
        settings_hash=record.settings_hash,
        settings=settings,
        examples=_examples(outcomes),
        **numbers(outcomes, names),
    )


def write_card(path: Path, card: Card) -> None:
    write_json(path, card.to_json())


def read_card(path: Path) -> tuple[Card, bool]:
    """A card, and whether it is still as it was written."""
    saved = read_json(path)
    if not isinstance(saved, dict) or saved.get("kind") != KIND:
        raise UserError(f"{path} is not an evaluation card of spat.")
    if saved.get("schema") != SCHEMA:
        raise UserError(
            f"{path} has schema {saved.get('schema')!r} and this spat reads {SCHEMA}; "
            "use the version of spat that wrote it, or a newer one."
        )
    claimed = saved.pop("sha256", None)
    wanted = [field.name for field in fields(Card)]
    missing = [name for name in wanted if name not in saved]
    if missing:
        raise UserError(f"{path} is not a whole card: it has no {missing[0]!r}.")
    foreign = sorted(saved.keys() - set(wanted))
    if foreign:
        raise UserError(f"{path} is not a card of this spat: it has a {foreign[0]!r}.")
    card = Card(**saved)
    if problem := _problem(card):
        raise UserError(f"{path} is not a whole card: {problem}.")
    return card, claimed == checksum(saved)


def checksum(content: Section) -> str:
    """Of everything that a card says, whatever its line breaks."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def images_digest(x: Tensor, y: Tensor) -> str:
    """A name for exactly these images, in float32, and their labels."""
    return tensorfile.digest({"x": x.float(), "y": y.long()})


def _examples(outcomes: Outcomes) -> dict[str, Any]:
    """In the order of the test set."""
    order = np.argsort(outcomes.ids)
    return {
        "ids": outcomes.ids[order].tolist(),
        "labels": outcomes.labels[order].tolist(),
        "clean": outcomes.clean[order].tolist(),
        "predicted": {
            name: found.predicted[order].tolist() for name, found in outcomes.attacks.items()
        },
        "stages": {
            name: {"names": list(found.stages), "broke": found.stage[order].tolist()}
            for name, found in outcomes.attacks.items()
            if found.stages
        },
    }


def _column(labels: Ints, clean: Ints, predicted: Ints, stages: Section) -> Attacked:
    broken = (clean == labels) & (predicted != labels)
    unknown = np.full(len(labels), -1, np.int64)
    distance, stage = np.zeros(len(labels), np.float32), np.asarray(stages.get("broke", ()), int)
    return Attacked(predicted, broken, distance, unknown, tuple(stages.get("names", ())), stage)


def _problem(card: Card) -> str:
    """What keeps a card from being checked at all; else empty."""
    try:
        examples, classes = card.examples, card.data["classes"]
        columns = [examples["ids"], examples["labels"], examples["clean"]]
        columns += examples["predicted"].values()
        whole = all(type(value) is int and value >= 0 for column in columns for value in column)
        sums = bool(card.data["images_sha256"] and card.model["weights_sha256"])
        eps, norm = float(card.threat["eps"]), card.threat["norm"]
    except (KeyError, TypeError, ValueError, AttributeError):
        return "a section cannot be read"
    if not whole or len({len(column) for column in columns}) != 1 or not columns[0]:
        return "its examples are not rows of numbers"
    if len(set(columns[0])) != len(columns[0]) or max(columns[1]) >= len(classes) or not sums:
        return "it does not say which images or weights it is about"
    return "" if eps >= 0 and norm in ("linf", "l2") else "it names no threat model"
