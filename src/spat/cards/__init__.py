"""Cards: an evaluation's claims with the images behind them, and a check that needs no attack."""

from spat.cards.card import Card, images_digest, read_card, write_card
from spat.cards.evidence import Evidence
from spat.cards.verify import Check, check_card

__all__ = [
    "Card",
    "Check",
    "Evidence",
    "check_card",
    "images_digest",
    "read_card",
    "write_card",
]
