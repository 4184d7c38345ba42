"""Train image classifiers that withstand adversarial attack, and say honestly how robust they are.

`spat.model`, `spat.data`, `spat.attack` and `spat.defence` build components by name; `spat.train`,
`spat.evaluate` and `spat.audit` work on any `nn.Module` and tensors. Names are imported when first
used, so that `import spat` is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spat.api import attack, data, defence, evaluate, model, step, train, transfer
    from spat.config import Experiment, Training
    from spat.doubts import audit
    from spat.errors import UserError
    from spat.models import CosineHead
    from spat.records import Outcomes, Record

__version__ = "0.1.0"

_HOMES = {
    "attack": "spat.api",
    "audit": "spat.doubts",
    "data": "spat.api",
    "defence": "spat.api",
    "evaluate": "spat.api",
    "model": "spat.api",
    "step": "spat.api",
    "train": "spat.api",
    "transfer": "spat.api",
    "CosineHead": "spat.models",
    "Experiment": "spat.config",
    "Outcomes": "spat.records",
    "Record": "spat.records",
    "Training": "spat.config",
    "UserError": "spat.errors",
}

__all__ = [  # noqa: RUF022 (in the order of a reader's need)
    "model",
    "data",
    "attack",
    "defence",
    "train",
    "step",
    "evaluate",
    "transfer",
    "audit",
    "CosineHead",
    "Experiment",
    "Outcomes",
    "Record",
    "Training",
    "UserError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spat' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
