"""What is written to disk: Event, Outcomes, Record. Plain values; nothing here imports torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
    """One thing that happened in a run: start, step, epoch, checkpoint, note or end."""

    kind: str
    values: Mapping[str, Any]
    time: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "time": round(self.time, 3), **self.values}


@dataclass(frozen=True)
class Attacked:
    """What one attack did to each example. `step` is -1 where the attack does not tell it."""

    predicted: Ints
    broken: Bools
    distance: Floats
    step: Ints


@dataclass(frozen=True)
class Outcomes:
    """One row per example: every accuracy is computed from here, so it traces back to images."""

    ids: Ints
    labels: Ints
    clean: Ints
    attacks: Mapping[str, Attacked]
    eps: float
    norm: str

    def __len__(self) -> int:
        return len(self.labels)

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
        return self.worst if attack == "worst" else self.robust(attack)

    def to_json(self) -> dict[str, Any]:
        attacks = {
            name: {key: getattr(found, key).tolist() for key in Attacked.__dataclass_fields__}
            for name, found in self.attacks.items()
        }
        return {
            "schema": SCHEMA,
            "eps": self.eps,
            "norm": self.norm,
            "ids": self.ids.tolist(),
            "labels": self.labels.tolist(),
            "clean": self.clean.tolist(),
            "attacks": attacks,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Outcomes:
        attacks = {
            name: Attacked(
                np.asarray(found["predicted"], np.int64),
                np.asarray(found["broken"], np.bool_),
                np.asarray(found["distance"], np.float32),
                np.asarray(found["step"], np.int64),
            )
            for name, found in saved["attacks"].items()
        }
        ids, labels, clean = (
            np.asarray(saved[key], np.int64) for key in ("ids", "labels", "clean")
        )
        return cls(ids, labels, clean, attacks, saved["eps"], saved["norm"])


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
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Record:
        measured = tuple(Measured(**row) for row in saved["measured"])
        return cls(**{**saved, "measured": measured, "doubts": tuple(saved["doubts"])})


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
