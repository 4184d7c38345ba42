"""The SPAT paper's single setting for every method: ResNet-18 on CIFAR-10, 100 epochs."""

from __future__ import annotations

from spat.config import Choice, Experiment, Training

PAPER_ATTACKS = ("fgsm", "pgd-20", "pgd-100", "mim-20", "cw-30")


def cifar10_common(defence: str = "spat-paper", model: str = "resnet18") -> Experiment:
    """Any defence under the paper's setting: only the method differs.

    SGD 0.1, dropped to a tenth at epochs 75 and 90, 10 steps of 2/255 at eps 8/255. Momentum and
    weight decay are those of the authors' code; the paper does not state them. Unlike theirs, the
    best epoch is chosen on 2% of the training images, never on the test images.

    defence: a defence by name
    model: a model by name
    """
    return Experiment(
        data=Choice("cifar10"),
        model=Choice(model),
        defence=Choice(defence),
        training=Training(
            epochs=100,
            batch_size=128,
            lr=0.1,
            momentum=0.9,
            weight_decay=2e-4,
            milestones=(75, 90),
            validation=0.02,
        ),
        attacks=PAPER_ATTACKS,
    )
