"""Plain training on clean images, without an adversary: the baseline that falls to any attack.

    loss = CE(z, y)

z: logits of the clean image x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spat.defences._base import Defence, Terms
from spat.losses import ce


@dataclass(frozen=True, kw_only=True)
class Natural(Defence):
    """Cross entropy on clean images: no defence at all, for comparison.

    attack: not used; its eps is the budget that validation attacks with
    """

    passes = "clean"

    def terms(self, clean: Tensor, adv: Any, labels: Tensor, **context: Any) -> Terms:
        loss = ce(clean, labels)
        return Terms(loss, {"ce": loss})
