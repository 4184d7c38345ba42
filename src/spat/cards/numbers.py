"""Every number of a card, counted from the rows of its examples: once to write it, once to check.

Shares are rounded, so that a card counted again on another machine is the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spat.records import Measured, Outcomes
from spat.reporting.wording import fraction, norm_name, percent
from spat.results import measured, wilson
from spat.results.classwise import class_count, confusion

DIGITS = 6
SECTIONS = ("says", "threat", "measured", "classes", "worst_class", "confusion")


def numbers(outcomes: Outcomes, names: Sequence[str]) -> dict[str, Any]:
    """The sections of a card that follow from its examples."""
    rows = measured(outcomes)
    case = "worst" if outcomes.attacks else "clean"
    classes = _classes(outcomes, _named(outcomes, names), case)
    counts = confusion(outcomes, len(classes), case)
    return {
        "says": [_sentence(row, outcomes) for row in rows],
        "threat": {
            "norm": outcomes.norm,
            "eps": outcomes.eps,
            "eps_says": fraction(outcomes.eps),
            "pixels": [0, 1],
        },
        "measured": [_row(row, outcomes) for row in rows],
        "classes": classes,
        "worst_class": min((c for c in classes if c["n"]), key=lambda c: c["held"] / c["n"]),
        "confusion": {
            "against": _against(case, outcomes),
            "taken_for": [c["class"] for c in classes],
            "images": {c["class"]: counts[i].tolist() for i, c in enumerate(classes)},
        },
    }


def _row(row: Measured, outcomes: Outcomes) -> dict[str, Any]:
    return {
        "attack": row.attack,
        "eps": 0.0 if row.attack == "clean" else outcomes.eps,
        "norm": outcomes.norm,
        "n": row.n,
        "held": int(outcomes.held(row.attack).sum()),
        **_share(row.value, row.low, row.high),
    }


def _share(value: float, low: float, high: float) -> dict[str, Any]:
    interval = [round(low, DIGITS), round(high, DIGITS)]
    return {"accuracy": round(value, DIGITS), "interval_95": interval}


def _sentence(row: Measured, outcomes: Outcomes) -> str:
    interval = f"95% interval {percent(row.low)} to {percent(row.high)}"
    found = f"{percent(row.value)} hold ({interval})"
    return f"{_against(row.attack, outcomes)}, n {row.n}: {found}"


def _against(case: str, outcomes: Outcomes) -> str:
    if case == "clean":
        return "without attack"
    what = f"worst case over {', '.join(outcomes.attacks)}" if case == "worst" else case
    return f"{what}, eps {fraction(outcomes.eps)} ({norm_name(outcomes.norm, plain=True)})"


def _named(outcomes: Outcomes, names: Sequence[str]) -> list[str]:
    """A class that has no name, as of a model with more outputs than the data, has its number."""
    return [*names, *map(str, range(len(names), class_count(outcomes)))]


def _classes(outcomes: Outcomes, names: Sequence[str], case: str) -> list[dict[str, Any]]:
    return [_class(outcomes, label, name, case) for label, name in enumerate(names)]


def _class(outcomes: Outcomes, label: int, name: str, case: str) -> dict[str, Any]:
    own = outcomes.labels == label
    n, clean, held = (int(v.sum()) for v in (own, outcomes.correct[own], outcomes.held(case)[own]))
    share = _share(held / n, *wilson(held, n)) if n else {"accuracy": None, "interval_95": None}
    return {
        "class": name,
        "against": _against(case, outcomes),
        "n": n,
        "clean": clean,
        "held": held,
        **share,
    }
