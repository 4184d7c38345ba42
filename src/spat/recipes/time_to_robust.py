"""How much robustness a minute of training buys: the tricks that save time, and what they cost."""

from __future__ import annotations

from typing import Any

from spat.config import Experiment, experiment
from spat.errors import unknown

COMMON: dict[str, Any] = {
    "data": "mnist-mini",
    "model": "small-cnn",
    "defence": "spat-detached",
    "epochs": 3,
    "batch_size": 64,
    "lr": 0.05,
    "schedule": "one-cycle",
    "validation": 0.05,
    "validation_images": 500,
    "attacks": ("apgd-ce-50", "apgd-t-20"),
    "n": 500,
}
RESNET = {"model": "resnet18", "model.width": 0.125, "epochs": 2, "attack_steps": (1, 5, 10)}
EASY_START = {"eps_ramp": 0.3}
# Each way by its name: what it changes of the settings above. Free uses each batch `replays` times.
WAYS: dict[str, dict[str, Any]] = {
    "full": {"epochs": 5, "schedule": "steps", "milestones": (4, 5)},
    "one-cycle": {},
    "fewer-steps": {"attack_steps": (1, 5, 10)},
    "fewer-steps-eps-ramp": {"attack_steps": (1, 5, 10), **EASY_START},
    "madry": {"defence": "madry", **EASY_START},
    "fgsm-rs": {"defence": "fgsm-rs", **EASY_START},
    "n-fgsm": {"defence": "n-fgsm", **EASY_START},
    "free": {"defence": "free", "defence.replays": 3, "epochs": 2, **EASY_START},
    "natural": {"defence": "natural"},
    "resnet": {**RESNET, **EASY_START},
    "resnet-resized": {**RESNET, **EASY_START, "image_scales": (0.5, 0.75, 1.0)},
}


def time_to_robust(way: str = "one-cycle") -> Experiment:
    """SPAT in full and cut short, one-step defences and none, to compare by seconds of training.

    way: what is cut, by its name
    """
    if way not in WAYS:
        raise unknown("way", way, WAYS)
    return experiment({**COMMON, **WAYS[way]})
