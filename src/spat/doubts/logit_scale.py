"""The scale of the logits: cross entropy climbs well only where the softmax is neither flat nor
saturated.

Where logits are tiny, as bare cosines are, the softmax is flat and the gradient pushes towards the
mean of all other classes instead of the nearest one. Where they are huge it underflows to zero.
Multiplying all logits by a constant changes no prediction, so an attack that gets stronger by it
was too weak before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spat.attacks.pgd import PGD
from spat.doubts._base import Doubt, gap_level
from spat.doubts._subject import Subject
from spat.findings import LEVELS, Finding, Level

SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True, kw_only=True)
class LogitScale(Doubt):
    """Another scale of the logits, or the margin as loss, breaks more; or the softmax is flat.

    flat: amber where mean confidence in the label is less than this share of accuracy, over chance
    """

    flat: float = 0.2
    advice = (
        "attack at several logit scales, or with a loss that does not depend on them "
        "(margin, DLR); report the strongest."
    )

    def __call__(self, subject: Subject) -> Finding | None:
        attack = subject.attack
        if not isinstance(attack, PGD) or attack.loss != "ce":
            return None
        held = {"1": int(subject.held.sum())} | {
            name: int(subject.holds(subject.craft(other)).sum())
            for name, other in _variants(attack).items()
        }
        confidence = _confidence(subject)
        level, reason = self._judge(subject, held, confidence)
        return self.finding(
            level,
            reason,
            scales=list(SCALES),
            held=[held[f"{scale:g}"] / subject.total for scale in SCALES],
            held_margin=held["margin"] / subject.total,
            confidence=confidence,
        )

    def _judge(
        self, subject: Subject, held: dict[str, int], confidence: float
    ) -> tuple[Level, str]:
        best = min(held, key=held.__getitem__)
        gain = held["1"] - held[best]
        level, told = gap_level(gain, subject.total), _told(best, gain, subject.total)
        accuracy, chance = len(subject) / subject.total, 1 / subject.classes
        if confidence - chance >= self.flat * (accuracy - chance):
            return level, told
        return max(level, "amber", key=LEVELS.index), (
            f"the logits are so small that the softmax is flat: {100 * confidence:.0f}% confidence "
            f"at {100 * accuracy:.0f}% accuracy; {told}"
        )


def _variants(attack: PGD) -> dict[str, PGD]:
    """The same attack at other scales, as factors on its own, and on the margin."""
    scaled = {
        f"{scale:g}": replace(attack, loss_scale=scale * attack.loss_scale)
        for scale in SCALES
        if scale != 1.0
    }
    return {**scaled, "margin": replace(attack, loss="margin", loss_scale=1.0)}


def _told(best: str, gain: int, n: int) -> str:
    if gain == 0:
        return "no other scale breaks more, nor does the margin as loss."
    other = "the margin as loss" if best == "margin" else f"logits times {best}"
    return f"{other} breaks {100 * gain / n:.1f}% more of the images."


def _confidence(subject: Subject) -> float:
    """Mean softmax probability of the label at the attack's scale."""
    p = (subject.loss_scale * subject.clean).softmax(1)
    return float(p.gather(1, subject.y[:, None]).mean())
