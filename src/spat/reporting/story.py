"""What was trained and measured, in plain sentences that claim no more than was seen."""

from __future__ import annotations

from collections.abc import Sequence

from spat.records import Measured, Record
from spat.reporting.table import attack_names
from spat.reporting.wording import budget, fraction, listing, percent, sample


def title(record: Record) -> str:
    """The defence, model and data, as far as the settings name them."""
    names = [str(record.settings[key]) for key in ("defence", "model", "data") if _has(record, key)]
    return " \u00b7 ".join(names) or "Robustness report"


def statement(record: Record) -> str:
    """One paragraph: what was trained, on what it was measured, what the attacker may do."""
    parts = (_trained(record), _threat(record), _found(record), _limits(record))
    return " ".join(filter(None, parts))


def tiles(record: Record) -> list[tuple[str, str, str]]:
    """The headline numbers: a value, what it is, and all that qualifies it."""
    attacks, threat = listing(attack_names(record.measured)), budget(record.eps, record.norm)
    told = {
        "clean": ("clean accuracy", "no attack"),
        "worst": ("accuracy in the worst case", f"over {attacks}, {threat}"),
    }
    return [
        (percent(row.value), told[row.attack][0], f"{told[row.attack][1]}, {sample(row.n)}")
        for row in record.measured
        if row.attack in told
    ]


def _trained(record: Record) -> str:
    settings = record.settings
    model = f"The model {settings['model']}" if _has(record, "model") else "A model"
    data = f" on {settings['data']}" if _has(record, "data") else ""
    n = max((row.n for row in record.measured), default=0)
    measured = f"measured on {sample(n)} test image{'s' if n != 1 else ''}"
    if not _has(record, "defence"):
        return f"{model} was {measured}{data.replace(' on ', ' of ')}."
    epochs = f" for {settings['epochs']} epochs" if _has(record, "epochs") else ""
    trained = f"{model} was trained{data} with the defence {settings['defence']}{epochs}"
    return f"{trained}, then {measured}."


def _threat(record: Record) -> str:
    """The threat model in words, and in the symbols that papers use."""
    eps = fraction(record.eps)
    allowed = {
        "linf": f"each pixel by at most eps\u00a0=\u00a0{eps} (L\u221e)",
        "l2": f"each image by a Euclidean length of at most eps\u00a0=\u00a0{eps} (L2)",
    }.get(record.norm, f"each image by at most eps\u00a0=\u00a0{eps} ({record.norm})")
    return (
        f"The attacker may change {allowed}; pixels lie in [0, 1] before and after, "
        "and normalisation, if any, is part of the model."
    )


def _found(record: Record) -> str:
    rows, attacks = {row.attack: row for row in record.measured}, attack_names(record.measured)
    said = []
    if "clean" in rows:
        said.append(f"Unattacked, {percent(rows['clean'].value)} are classified rightly")
    if "worst" in rows and attacks:
        said.append(_withstand(rows["worst"], attacks))
    return "; ".join(said) + "." if said else ""


def _withstand(worst: Measured, attacks: Sequence[str]) -> str:
    every = "every one of the attacks" if len(attacks) > 1 else "the attack"
    between = f"95% interval {percent(worst.low)} to {percent(worst.high)}"
    return f"{percent(worst.value)} ({between}) withstand {every} {listing(attacks)}"


def _limits(record: Record) -> str:
    if not attack_names(record.measured):
        return "No attack was run, so nothing is said about robustness."
    return "A stronger attack could break more: accuracy under attack is an upper bound."


def _has(record: Record, key: str) -> bool:
    return record.settings.get(key) not in (None, "")
