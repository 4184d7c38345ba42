"""Every defence for the same few epochs on the embedded images: does each of them defend?"""

from __future__ import annotations

from typing import Any

from spat import catalog
from spat.config import Choice, Experiment, Training

# Defences that start on a plainer loss begin at once here: the run is shorter than their warm-up.
AT_ONCE: dict[str, dict[str, Any]] = {"gairat": {"begin_epoch": 1}, "mail": {"burn_in": 0}}
FEW_STEPS = {"attack.steps": 5, "attack.step_size": 0.12}
USUAL_STEPS = 10  # of every defence with an iterated inner attack


def short_comparison(defence: str = "madry") -> Experiment:
    """A small fixed budget, the same for every defence: four epochs, five inner steps at eps 0.3.

    defence: a defence by name
    """
    defaults = {s.name: s.default for s in catalog.settings("defence", defence)}
    iterated = defaults["attack.steps"] == USUAL_STEPS
    given = {
        **AT_ONCE.get(catalog.stem("defence", defence), {}),
        **(FEW_STEPS if iterated else {}),
    }
    return Experiment(
        data=Choice("mnist-mini"),
        model=Choice("small-cnn"),
        defence=Choice(defence, given),
        training=Training(
            epochs=4,
            lr=0.05,
            schedule="one-cycle",
            eps_ramp=0.3,
            validation=0.05,
            validation_images=500,
        ),
        attacks=("fgsm", "pgd-40", "cw-40"),
        n=1000,
    )
