"""The gap between the attack in question and AutoAttack's strongest parts.

Of what AutoAttack breaks on models with useful gradients, APGD-CE and APGD-T break nearly all, at a
fifth of the cost; Square and transfer are doubts of their own here.
"""

from __future__ import annotations

from dataclasses import dataclass

from spat.attacks.apgd_ce import ApgdCE
from spat.attacks.apgd_t import ApgdT
from spat.doubts._base import Doubt, gap_level
from spat.doubts._subject import Subject
from spat.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Autoattack(Doubt):
    """APGD-CE and APGD-T, as in AutoAttack, break images that the attack in question does not.

    steps: of each of them
    targets: classes that APGD-T aims at
    """

    steps: int = 50
    targets: int = 3
    advice = "the attack is too weak: report AutoAttack (`aa`) instead of it."

    def __call__(self, subject: Subject) -> Finding:
        eps, norm, steps = subject.attack.eps, subject.attack.norm, self.steps
        left = subject.only(subject.held)
        for attack in (
            ApgdCE(eps=eps, norm=norm, steps=steps),
            ApgdT(eps=eps, norm=norm, steps=steps, targets=self.targets),
        ):
            if len(left):
                left = left.only(left.holds(left.craft(attack)))
        k = int(subject.held.sum()) - len(left)
        return self.finding(
            gap_level(k, subject.total),
            f"APGD-CE and APGD-T, the strongest of AutoAttack, break {k} of {subject.total} images "
            "that the attack does not.",
            gap=k / subject.total,
            held_attack=int(subject.held.sum()) / subject.total,
            held_autoattack=len(left) / subject.total,
        )
