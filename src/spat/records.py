"""What is written to disk: Event, Outcomes, Record. Plain values; nothing here imports torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA = 1
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Scalar = float | int | str | bool | None


@dataclass(frozen=True)
class Event:
    """One thing that happened: start, step, epoch, checkpoint, attack, wave, doubt, note or end."""

    kind: str
    values: Mapping[str, Any]
    time: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "time": round(self.time, 3), **self.values}


def no_stage() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Attacked:
    """What one attack did to each example. `step` is -1 where the attack does not tell it.

    stages: the attacks that it runs one after the other, each on what the last one left; else none
    stage: [n] which of them broke the example, counted from 0; -1 for none
    """

    predicted: Ints
    broken: Bools
    distance: Floats
    step: Ints
    stages: tuple[str, ...] = ()
    stage: Ints = field(default_factory=no_stage)

    def to_json(self) -> dict[str, Any]:
        rows = {key: getattr(self, key).tolist() for key in _COLUMNS}
        return {**rows, "stages": list(self.stages), "stage": self.stage.tolist()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Attacked:
        rows = {key: np.asarray(saved[key], dtype) for key, dtype in _COLUMNS.items()}
        stage = np.asarray(saved.get("stage", ()), np.int64)
        return cls(**rows, stages=tuple(saved.get("stages", ())), stage=stage)

    @classmethod
    def joined(cls, parts: Sequence[Attacked], order: Ints) -> Attacked:
        """The rows of all parts, of one attack, in another order."""
        names = [*_COLUMNS, *(["stage"] if parts[0].stages else [])]
        rows = {name: np.concatenate([getattr(p, name) for p in parts])[order] for name in names}
        return cls(**rows, stages=parts[0].stages)


_COLUMNS: Mapping[str, Any] = {
    "predicted": np.int64,
    "broken": np.bool_,
    "distance": np.float32,
    "step": np.int64,
}
_COUNTS = {"images", "of"}  # of `how`: those of a whole are the sums of its parts
BETWEEN = ": "  # an attack and its stage: `aa: square`


@dataclass(frozen=True)
class Outcomes:
    """One row per example: every accuracy is computed from here, so it traces back to images.

    notes: what a reader of the numbers must know, one sentence each
    how: what was attacked, in batches of how many, and which of the images offered
    """

    ids: Ints
    labels: Ints
    clean: Ints
    attacks: Mapping[str, Attacked]
    eps: float
    norm: str
    notes: tuple[str, ...] = ()
    how: Mapping[str, Scalar] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        """All that has an accuracy: clean, each attack with its stages before it, worst."""
        names = ["clean"]
        for name, found in self.attacks.items():
            names += [*(name + BETWEEN + stage for stage in found.stages), name]
        return [*names, *(["worst"] if self.attacks else [])]

    @property
    def broken_by(self) -> list[str]:
        """[n] the first attack, and its stage, that broke the example; `clean`; empty for none."""
        by = np.where(self.correct, "", "clean").astype(object)
        for name, found in self.attacks.items():
            stages = [name + BETWEEN + stage for stage in found.stages]
            new = found.broken & (by == "")
            by[new] = [stages[k] for k in found.stage[new]] if stages else name
        return [str(name) for name in by]

    @property
    def correct(self) -> Bools:
        """[n] whether the clean image is classified rightly."""
        return np.asarray(self.clean == self.labels)

    def robust(self, attack: str) -> Bools:
        """[n] right on the clean image and not broken by this attack."""
        return np.asarray(self.correct & ~self.attacks[attack].broken)

    @property
    def worst(self) -> Bools:
        """[n] right on the clean image and broken by no attack: the pointwise worst case."""
        held = self.correct.copy()
        for name in self.attacks:
            held &= self.robust(name)
        return held

    def accuracy(self, attack: str = "clean") -> float:
        """The share of all examples that hold against `clean`, an attack by name, or `worst`."""
        return float(self.held(attack).mean())

    def held(self, attack: str) -> Bools:
        if attack == "clean":
            return self.correct
        if attack == "worst":
            return self.worst
        return self.robust(attack) if attack in self.attacks else self._held_after(attack)

    def _held_after(self, name: str) -> Bools:
        """[n] what is left after a stage of an attack and those before it."""
        attack, _, stage = name.partition(BETWEEN)
        found = self.attacks[attack]
        last = found.stages.index(stage)
        return np.asarray(self.correct & ~(found.broken & (found.stage <= last)))

    @classmethod
    def merge(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """The outcomes of disjoint sets of examples under the same attacks, ordered by id."""
        ids = np.concatenate([part.ids for part in parts])
        order = np.argsort(ids, kind="stable")
        labels, clean = (
            np.concatenate([getattr(part, name) for part in parts])[order]
            for name in ("labels", "clean")
        )
        first = parts[0]
        attacks = {
            name: Attacked.joined([part.attacks[name] for part in parts], order)
            for name in first.attacks
        }
        notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
        how = {
            key: sum(int(part.how[key] or 0) for part in parts) if key in _COUNTS else value
            for key, value in first.how.items()
        }
        return cls(ids[order], labels, clean, attacks, first.eps, first.norm, notes, how)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "eps": self.eps,
            "norm": self.norm,
            "ids": self.ids.tolist(),
            "labels": self.labels.tolist(),
            "clean": self.clean.tolist(),
            "broken_by": self.broken_by,
            "attacks": {name: found.to_json() for name, found in self.attacks.items()},
            "notes": list(self.notes),
            "how": dict(self.how),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Outcomes:
        attacks = {name: Attacked.from_json(found) for name, found in saved["attacks"].items()}
        ids, labels, clean = (
            np.asarray(saved[key], np.int64) for key in ("ids", "labels", "clean")
        )
        notes = tuple(saved.get("notes", ()))
        how = saved.get("how", {})
        return cls(ids, labels, clean, attacks, saved["eps"], saved["norm"], notes, how)


@dataclass(frozen=True)
class Measured:
    """One number with its 95% interval: the share of `n` examples that held against `attack`."""

    attack: str
    value: float
    low: float
    high: float
    n: int
    published: float | None = None


@dataclass(frozen=True)
class Record:
    """A result that can be traced and rerun: what was measured, on what, with which settings.

    `attacks` tells each attack by its name in `measured` with all its settings: its repr.
    `notes` and `how` are those of its Outcomes.
    """

    settings: Mapping[str, Scalar]
    settings_hash: str
    eps: float
    norm: str
    measured: tuple[Measured, ...]
    seeds: Mapping[str, int]
    weights_sha256: str
    commit: str
    version: str
    hardware: Mapping[str, Scalar]
    seconds: Mapping[str, float]
    doubts: tuple[str, ...] = ()
    attacks: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    how: Mapping[str, Scalar] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Record:
        measured = tuple(Measured(**row) for row in saved["measured"])
        texts = {name: tuple(saved.get(name, ())) for name in ("doubts", "notes")}
        return cls(**{**saved, "measured": measured, **texts})


@dataclass(frozen=True)
class Transferred:
    """What images crafted on each source do to each target, a row per example and model.

    sources: the sources under their own attack, by its name: the white-box result
    targets: the targets, under columns such as `pgd-20 from lenet5`
    attacks: for each source, its attacks by name with all their settings
    """

    sources: Mapping[str, Outcomes]
    targets: Mapping[str, Outcomes]
    attacks: Mapping[str, Mapping[str, str]]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "attacks": {source: dict(own) for source, own in self.attacks.items()},
            "sources": {name: found.to_json() for name, found in self.sources.items()},
            "targets": {name: found.to_json() for name, found in self.targets.items()},
        }


def transferred_from(attack: str, source: str) -> str:
    """The column of a target's Outcomes."""
    return f"{attack} from {source}"
