"""Every defence for the same few epochs on the embedded images: does each of them defend?"""

from __future__ import annotations

from typing import Any

from spat import catalog
from spat.config import Choice, Experiment, Training

EPOCHS = 10
# Defences that start on a plainer loss do so for half of the run, as in their authors' recipes.
WARM_UPS: dict[str, dict[str, Any]] = {
    "gairat": {"begin_epoch": EPOCHS // 2 + 1},
    "mail": {"burn_in": EPOCHS // 2},
}


def short_comparison(defence: str = "madry") -> Experiment:
    """A small fixed budget, the same for every defence: ten epochs of SmallCNN at eps 0.3.

    defence: a defence by name
    """
    return Experiment(
        data=Choice("mnist-mini"),
        model=Choice("small-cnn"),
        defence=Choice(defence, WARM_UPS.get(catalog.stem("defence", defence), {})),
        training=Training(
            epochs=EPOCHS,
            lr=0.05,
            schedule="one-cycle",
            eps_ramp=0.3,
            validation=0.05,
            validation_images=500,
        ),
        attacks=("fgsm", "pgd-40", "cw-40", "aa"),
        n=1000,
    )
