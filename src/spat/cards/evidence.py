"""What an evaluation leaves for others to check: listens while it runs, writes once it is done."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from spat.cards.card import images_digest, make_card, write_card
from spat.cards.images import Gallery
from spat.records import BETWEEN, Event, Outcomes, Record


@dataclass
class Evidence:
    """A card, a file of adversarial images, or both.

    card: where the card goes
    images: where the adversarial images go
    each: keep every attack's images too, not only the worst case's
    weights: the file that the model's weights were read from, for the card
    """

    card: Path | None = None
    images: Path | None = None
    each: bool = False
    weights: Path | None = None
    work: dict[str, dict[str, Any]] = field(default_factory=dict)
    gallery: Gallery | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """An evaluation that ends in an error leaves no file that nobody can use."""
        if kind is not None and self.gallery is not None:
            self.gallery.filling.drop()

    def begin(self, x: Tensor, y: Tensor, labels: Sequence[str]) -> None:
        if self.images is not None:
            self.gallery = Gallery(self.images, x, y, labels, each=self.each)

    def keep(self, label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        if self.gallery is not None:
            self.gallery.keep(label, index, x_adv, predicted)

    def hear(self, event: Event) -> None:
        """The last that an attack says of its cost is its whole cost."""
        if event.kind == "attack" and "forwards" in event.values:
            known = ("forwards", "backwards", "seconds")
            attack = event.values["attack"].partition(BETWEEN)[0]
            self.work[attack] = {key: event.values[key] for key in known}

    def add(self, shares: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """The work of all processes that shared the images, each attack's time the longest."""
        for attack in self.work:
            own = [share[attack] for share in shares if attack in share]
            passes = {key: sum(one[key] for one in own) for key in ("forwards", "backwards")}
            self.work[attack] = {**passes, "seconds": max(one["seconds"] for one in own)}

    def finish(
        self, record: Record, outcomes: Outcomes, x: Tensor, y: Tensor, names: Sequence[str]
    ) -> None:
        adversarial = None if self.gallery is None else self._seal(self.gallery, record, outcomes)
        if self.card is None:
            return
        ids = sorted(outcomes.ids.tolist())
        data = {
            "name": record.settings["data"],
            "part": "test",
            "n": len(ids),
            "ids": "all" if len(ids) == len(x) else "see examples",
            "images_sha256": images_digest(x[ids], y[ids]),
            "classes": list(names),
        }
        weights = None if self.weights is None else self._beside(self.weights)
        card = make_card(
            record,
            outcomes,
            names=names,
            data=data,
            work=self.work,
            weights=weights,
            adversarial=adversarial,
        )
        write_card(self.card, card)

    def _seal(self, gallery: Gallery, record: Record, outcomes: Outcomes) -> dict[str, Any]:
        assert self.images is not None
        meta = {"eps": record.eps, "norm": record.norm, "weights_sha256": record.weights_sha256}
        sha256 = gallery.seal(outcomes, meta)
        return {"file": self._beside(self.images), "sha256": sha256, "each": self.each}

    def _beside(self, file: Path) -> str:
        """Where the file is, seen from the card, so that both can be moved together."""
        if self.card is None:
            return str(file)
        return os.path.relpath(file.absolute(), self.card.absolute().parent)
