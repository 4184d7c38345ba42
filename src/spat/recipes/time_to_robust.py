"""How much robustness a minute of training buys: the tricks that save time, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spat.config import Experiment, experiment
from spat.errors import unknown

COMMON: dict[str, Any] = {
    "data": "mnist-mini",
    "model": "lenet5",
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
STEPS = {"attack_steps": (1, 5, 10)}
EASY = {"eps_ramp": 0.3}
RESNET = {"model": "resnet18", "model.width": 0.125, "epochs": 1, **STEPS, **EASY}


@dataclass(frozen=True)
class Way:
    """What a way of training changes of the common settings, and in words."""

    about: str
    settings: Mapping[str, Any]


WAYS = {
    "full": Way(
        "SPAT, ten inner steps, five epochs of a stepwise rate",
        {"epochs": 5, "schedule": "steps", "milestones": (4, 5)},
    ),
    "one-cycle": Way("SPAT, ten inner steps, three epochs of a one-cycle rate", {}),
    "fewer-steps": Way("one-cycle with 1, 5 and 10 inner steps in turn", STEPS),
    "fewer-steps-eps-ramp": Way("fewer-steps, and eps grows at first", {**STEPS, **EASY}),
    "madry": Way("PGD training, ten inner steps, eps grows", {"defence": "madry", **EASY}),
    "fgsm-rs": Way("FGSM from a random start, eps grows", {"defence": "fgsm-rs", **EASY}),
    "n-fgsm": Way("FGSM from strong noise, eps grows", {"defence": "n-fgsm", **EASY}),
    "free": Way(
        "two epochs, each batch three times, eps grows",
        {"defence": "free", "defence.replays": 3, "epochs": 2, **EASY},
    ),
    "natural": Way("no attack at all", {"defence": "natural"}),
    "resnet": Way("fewer-steps-eps-ramp on a ResNet-18, one epoch", RESNET),
    "resnet-resized": Way(
        "resnet on images of 14, 21 and 28 pixels in turn",
        {**RESNET, "image_scales": (0.5, 0.75, 1.0)},
    ),
}


def time_to_robust(way: str = "one-cycle") -> Experiment:
    """SPAT in full and cut short, one-step defences and none, to compare by seconds of training.

    way: what is cut, by its name
    """
    if way not in WAYS:
        raise unknown("way", way, WAYS)
    return experiment({**COMMON, **WAYS[way].settings})
