"""The demonstration: SPAT on the MNIST images inside the package, in a few minutes on two cores."""

from __future__ import annotations

from spat.config import Choice, Experiment, Training


def demo() -> Experiment:
    """SPAT with detached gains, one-cycle rate; the inner attack grows to ten steps."""
    return Experiment(
        data=Choice("mnist-mini"),
        model=Choice("small-cnn"),
        defence=Choice("spat", {"detach_gains": True, "attack.steps": 10}),
        training=Training(
            epochs=11,
            batch_size=128,
            lr=0.1,
            schedule="one-cycle",
            eps_ramp=0.2,
            attack_ramp=0.4,
            validation=0.05,
            validation_images=500,
        ),
        attacks=("fgsm", "pgd-40", "cw-40"),
    )
