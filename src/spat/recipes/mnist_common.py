"""The SPAT paper's MNIST setting: SmallCNN, 80 epochs, 40 steps of 0.01 at eps 0.3."""

from __future__ import annotations

from spat.config import Choice, Experiment, Training


def mnist_common(defence: str = "spat-paper") -> Experiment:
    """Any defence under the paper's MNIST setting.

    The paper leaves s, lambda, batch, momentum and decay open: those of TRADES' MNIST recipe are
    taken (batch 128, momentum 0.9, no decay, drops at 55 and 75), and the defence's own defaults.

    defence: a defence by name
    """
    return Experiment(
        data=Choice("mnist"),
        model=Choice("small-cnn"),
        defence=Choice(defence, {"attack.steps": 40, "attack.step_size": 0.01}),
        training=Training(
            epochs=80,
            batch_size=128,
            lr=0.01,
            weight_decay=0.0,
            milestones=(55, 75),
            validation=0.02,
        ),
        attacks=("fgsm", "pgd-20", "cw-30"),
    )
