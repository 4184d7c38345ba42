"""Each baseline as its own authors train it on CIFAR-10: rates, decay, length, schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spat import catalog
from spat.config import Experiment
from spat.errors import unknown
from spat.recipes.cifar10_common import cifar10_common

# MART, MAIL and SEAT share a ResNet-18 recipe: low rate, strong decay, 120 epochs.
SMALL_RATE: dict[str, Any] = {"epochs": 120, "lr": 0.01, "weight_decay": 3.5e-3}
NATIVE: dict[str, dict[str, Any]] = {
    # MadryLab counts updates: 80,000 of 128 images are 205 epochs, with drops at 40,000 and 60,000.
    "madry": {"epochs": 205, "milestones": (103, 154)},
    # Of ALP the only public code for CIFAR-10 is AT_HE's, which trains it as TRADES is trained.
    "alp": {"epochs": 82, "milestones": (75, 90, 100)},
    "trades": {"epochs": 76, "milestones": (75, 90, 100)},
    "mart": {**SMALL_RATE, "milestones": (75, 90, 100)},
    # MAIL's epochs count from 0, ours from 1.
    "mail": {**SMALL_RATE, "milestones": (76, 91, 101)},
    "seat": {
        **SMALL_RATE,
        "schedule": "linear",
        "milestones": (40, 80, 120),
        "levels": (1.0, 0.1, 0.01),
    },
    "gairat": {"epochs": 120, "milestones": (60, 90, 110), "levels": (0.1, 0.01, 0.005)},
    "awp": {"epochs": 200, "weight_decay": 5e-4, "milestones": (100, 150)},
    "spat": {},
}


def cifar10_native(defence: str = "trades") -> Experiment:
    """A baseline under its own authors' setting, on ResNet-18.

    ALP's own authors train with RMSProp on ImageNet, and those of FGSM-RS by tricks for speed: the
    first has the recipe of its public CIFAR-10 code, the second none.

    defence: a defence by name
    """
    owner = catalog.stem("defence", defence)
    if owner not in NATIVE:
        raise unknown("defence with a native recipe", defence, NATIVE)
    common = cifar10_common(defence)
    return replace(common, training=replace(common.training, **NATIVE[owner]))
