"""Class by class: what an attack turns each class into, and what is left of its accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spat.records import Ints, Outcomes


@dataclass(frozen=True)
class Confused:
    """A pair of classes: so many images of `label` are taken for `predicted` under attack."""

    label: int
    predicted: int
    count: int
    n: int


def predictions(outcomes: Outcomes, attack: str = "worst") -> Ints:
    """[n] what each image is taken for: `clean`, under an attack by name, or in the worst case.

    In the worst case that is what the first attack that broke it made of it. It equals the label
    exactly where `outcomes.held(attack)` is true.
    """
    names = list(outcomes.attacks) if attack == "worst" else [attack]
    seen = outcomes.clean.copy()
    for name in reversed([name for name in names if name != "clean"]):
        found = outcomes.attacks[name]
        fooled = outcomes.correct & found.broken
        seen[fooled] = found.predicted[fooled]
    return seen


def confusion(outcomes: Outcomes, classes: int, attack: str = "worst") -> Ints:
    """[classes, classes] images by label (rows) and by what they are taken for (columns)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (outcomes.labels, predictions(outcomes, attack)), 1)
    return counts


def class_count(outcomes: Outcomes) -> int:
    """The classes that the outcomes speak of, which may be fewer than the model has."""
    seen = [outcomes.labels, outcomes.clean, *(a.predicted for a in outcomes.attacks.values())]
    return 1 + max((int(column.max()) for column in seen if len(column)), default=-1)


def most_confused(counts: Ints, limit: int) -> list[Confused]:
    """The pairs that are confused most often, ties in the order of the classes."""
    off = counts.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[:limit]
    places = [divmod(int(place), len(off)) for place in order]
    totals = counts.sum(1)
    pairs = [Confused(a, b, int(off[a, b]), int(totals[a])) for a, b in places]
    return [pair for pair in pairs if pair.count]
