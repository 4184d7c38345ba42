"""Check an evaluation card by plain forwards: the breaks it claims, its weights, its numbers.

spat verify card.json
spat verify card.json --weights weights.pt --adversarial images.safetensors --data.path own.npz
spat verify card.json --entry entry.json

The model, the data set and both files are those that the card names, unless a flag says where they
are on this machine. Exit codes: 0 verified; 1 a claim fails; 2 something to correct first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spat.cli._flags import parser, settings_from
from spat.errors import UserError

if TYPE_CHECKING:
    from spat.cards import Card, Check


def run(arguments: Sequence[str]) -> int:
    command = parser("verify", __doc__ or "")
    command.add_argument("card", type=Path, help="a card that spat evaluate --card wrote")
    command.add_argument("--weights", type=Path, help="the weights [where the card says]")
    command.add_argument("--adversarial", type=Path, help="the images [where the card says]")
    command.add_argument("--entry", type=Path, help="once verified, a new RobustBench entry")
    options, flags = command.parse_known_args(arguments)
    if options.entry is not None and options.entry.exists():
        raise UserError(f"{options.entry} already exists; choose another --entry.")

    from spat.cards import check_card, read_card
    from spat.cards.entry import entry
    from spat.cards.verify import verdict
    from spat.loading import load_planned
    from spat.results import write_json
    from spat.tensorfile import opened

    card, unaltered = read_card(options.card)
    weights = options.weights or _beside(options.card, card.model["weights"])
    adversarial = options.adversarial or _adversarial(options.card, card)
    settings = {**card.settings, "device": "auto", **settings_from(flags)}
    with opened(adversarial) as rows:
        plan, model = load_planned(settings, weights)
        x, y = plan.splits.test.floats()
        ids = _places(card, len(x))
        x, y = x[ids].to(plan.device), y[ids].to(plan.device)
        made = None if options.entry is None else entry(card, len(plan.splits.test))
        checks = check_card(card, unaltered, model, x, y, rows, _print)
    print(verdict(card, checks))
    if any(check.level == "fails" for check in checks):
        return 1
    if made is not None:
        write_json(options.entry, made)
        print(f"entry: {options.entry}; fill in link, name, authors, venue and additional data")
    return 0


def _print(check: Check) -> None:
    print(f"{check.level:5}  {check.name}: {check.says}")


def _beside(card: Path, file: str | None) -> Path | None:
    """A file that a card names lies where it lay, seen from the card."""
    return None if file is None else card.parent / file


def _adversarial(path: Path, card: Card) -> Path:
    if card.adversarial is None:
        raise UserError(
            f"{path} names no adversarial images, so its breaks cannot be checked; "
            "evaluate with --save-adversarial FILE as well."
        )
    return path.parent / str(card.adversarial["file"])


def _places(card: Card, n: int) -> list[int]:
    ids: list[int] = card.ids.tolist()
    if max(ids) >= n:
        raise UserError(
            f"the card speaks of test image {max(ids)} and {card.data['name']} has {n} here: "
            "it is another data set."
        )
    return ids
