"""A transfer as one row per attack, source and target: what the matrix shows, with its interval."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from spat.records import Transferred, transferred_from
from spat.statistics import wilson


@dataclass(frozen=True)
class Cell:
    """The share of all `n` images that the target holds against images crafted on the source.

    white_box: the source is the target itself
    clean: the target's accuracy without attack
    low, high: the 95% interval of `accuracy`
    fooled, of: of the images that the attack breaks on the source and that the target has right
        without attack (`of`), those that break the target too
    """

    attack: str
    eps: float
    norm: str
    source: str
    target: str
    white_box: bool
    n: int
    clean: float
    accuracy: float
    low: float
    high: float
    fooled: int
    of: int


def cells(found: Transferred) -> list[Cell]:
    """Attack by attack, source by source, in the order in which they were given."""
    attacks = dict.fromkeys(name for own in found.attacks.values() for name in own)
    return [
        _cell(found, attack, source, target)
        for attack in attacks
        for source in found.sources
        for target in found.targets
    ]


def as_csv(rows: Sequence[Cell]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def _cell(found: Transferred, attack: str, source: str, target: str) -> Cell:
    own, other = found.sources[source], found.targets[target]
    column = transferred_from(attack, source)
    k, n = int(other.held(column).sum()), len(other)
    low, high = wilson(k, n)
    tried = own.attacks[attack].broken & other.correct
    return Cell(
        attack=attack,
        eps=other.eps,
        norm=other.norm,
        source=source,
        target=target,
        white_box=source == target,
        n=n,
        clean=other.accuracy("clean"),
        accuracy=k / n,
        low=low,
        high=high,
        fooled=int((tried & other.attacks[column].broken).sum()),
        of=int(tried.sum()),
    )
