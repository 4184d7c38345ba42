"""A verified card as an entry of RobustBench's model list, for its authors to complete."""

from __future__ import annotations

from typing import Any

from spat.cards.card import Card
from spat.errors import UserError
from spat.reporting.wording import fraction

STANDARD = "aa"  # the attack by which that list is ordered
UNTOLD = ("link", "name", "authors", "venue")  # what no evaluation knows


def entry(card: Card, test_images: int) -> dict[str, Any]:
    """The list's own fields and texts; `autoattack_acc` is that of AutoAttack, `reported` the worst
    case over all attacks, as it is for models that another attack has brought lower.
    """
    rows = {row["attack"]: row for row in card.measured}
    n = len(card.ids)
    if STANDARD not in rows or n != test_images:
        ran = ", ".join(name for name in rows if name not in ("clean", "worst")) or "no attack"
        raise UserError(
            f"an entry needs the attack {STANDARD} on all {test_images} test images; "
            f"this card has {ran} on {n}."
        )
    return {
        **dict.fromkeys(UNTOLD, ""),
        "additional_data": False,
        "number_forward_passes": 1,
        "dataset": card.data["name"],
        "architecture": card.model["name"],
        "eps": fraction(card.threat["eps"]),
        "clean_acc": _percent(rows["clean"]),
        "reported": _percent(rows["worst"]),
        "autoattack_acc": _percent(rows[STANDARD]),
        "unreliable": bool(card.doubts),
    }


def _percent(row: Any) -> str:
    return f"{100 * row['held'] / row['n']:.2f}"
