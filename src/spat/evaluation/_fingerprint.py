"""What an evaluation is of: a state is taken up only by the evaluation that left it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from spat import tensorfile
from spat.evaluation.plan import Planned

Fingerprint = Mapping[str, Any]
DIGESTS = {
    "weights": "a model with other weights",
    "images": "other images",
    "labels": "other labels",
    "ids": "images of other numbers",
}


def fingerprint(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    ids: Tensor,
    planned: Sequence[Planned],
    **settings: Any,
) -> dict[str, Any]:
    """All that decides the rows of an evaluation, as JSON has it."""
    weights = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    return {
        "weights": tensorfile.digest(weights),
        "images": tensorfile.digest({"x": x}),
        "labels": tensorfile.digest({"y": y.long()}),
        "ids": tensorfile.digest({"ids": ids}),
        **settings,
        "attacks": [one.label for one in planned],
        **{f"settings of {one.label}": repr(one.attack) for one in planned},
    }


def difference(old: Fingerprint, new: Fingerprint) -> str:
    """How they differ first, in words; empty if they do not."""
    for name in (*new, *(name for name in old if name not in new)):
        was, now = old.get(name), new.get(name)
        if was != now:
            return DIGESTS.get(name, f"{name} {_shown(was)}, not {_shown(now)}")
    return ""


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
