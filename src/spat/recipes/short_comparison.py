"""Every defence for the same few epochs on the embedded images: does each of them defend?"""

from __future__ import annotations

from spat import catalog
from spat.config import Choice, Experiment, Training

# Defences that start on a plainer loss begin at once here: the run is shorter than their warm-up.
AT_ONCE = {"gairat": {"begin_epoch": 1}, "mail": {"burn_in": 0}}


def short_comparison(defence: str = "madry") -> Experiment:
    """A small fixed budget, the same for every defence: six epochs of ten steps at eps 0.3.

    defence: a defence by name
    """
    return Experiment(
        data=Choice("mnist-mini"),
        model=Choice("small-cnn"),
        defence=Choice(defence, AT_ONCE.get(catalog.stem("defence", defence), {})),
        training=Training(
            epochs=6,
            lr=0.05,
            schedule="one-cycle",
            eps_ramp=0.3,
            validation=0.05,
            validation_images=500,
        ),
        attacks=("fgsm", "pgd-40", "cw-40"),
        n=1000,
    )
