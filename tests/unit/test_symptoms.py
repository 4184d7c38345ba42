"""The guard's eyes: sequences of epochs whose trouble is known, and healthy ones."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from spat.training.symptoms import Reading, Watch

Epoch = tuple[float, float, float, float]  # clean, after one step, after several, training loss
HEALTHY = [
    (0.5, 0.3, 0.2, 2.0),
    (0.6, 0.4, 0.3, 1.8),
    (0.7, 0.45, 0.36, 1.6),
    (0.72, 0.46, 0.35, 1.5),
]


def seen(epochs: list[Epoch], n: int = 1000) -> list[str]:
    """What is seen in each epoch: the first word of the trouble, or nothing."""
    watch, found = Watch(), []
    for number, (clean, single, robust, loss) in enumerate(epochs, 1):
        now = Reading(number, clean, single, robust, loss, n)
        watch = watch.after(now)
        found.append(watch.trouble(now).partition(" ")[0])
    return found


def test_a_healthy_run_is_left_alone() -> None:
    assert seen(HEALTHY) == [""] * 4


def test_robust_accuracy_that_vanishes_while_one_step_is_withstood() -> None:
    """As published of FGSM with a random start: from one epoch to the next."""
    collapsed = [*HEALTHY, (0.8, 0.75, 0.01, 1.0), (0.82, 0.8, 0.0, 0.8)]
    assert seen(collapsed) == [""] * 4 + ["catastrophic"] * 2


def test_one_that_never_withstood_more_than_a_step() -> None:
    assert seen([(0.9, 0.88, 0.02, 1.0)]) == ["catastrophic"]


@pytest.mark.parametrize(
    "epoch",
    [
        (0.3, 0.06, 0.05, 2.0),  # all of it fell: training diverged, which the loss shows
        (0.72, 0.4, 0.25, 1.4),  # both fell, less than half
    ],
)
def test_what_is_not_catastrophic(epoch: Epoch) -> None:
    assert seen([*HEALTHY, epoch])[-1] == ""


def test_early_in_training_one_step_is_only_the_easier() -> None:
    """At a large eps several steps break everything at first, and it passes."""
    assert seen([(0.95, 0.6, 0.05, 0.5), (0.96, 0.7, 0.2, 0.4), (0.96, 0.8, 0.6, 0.3)]) == [""] * 3
    assert seen([(0.23, 0.19, 0.15, 2.0), (0.31, 0.24, 0.05, 1.9)]) == ["", ""]  # PGD-5 on MNIST


def test_robust_overfitting_takes_three_epochs_in_a_row_of_a_falling_loss() -> None:
    fallen = [(0.75, 0.42, 0.30, 1.4 - 0.1 * k) for k in range(4)]
    assert seen([*HEALTHY, *fallen]) == [""] * 6 + ["robust"] * 2
    broken = [*fallen[:2], (0.75, 0.45, 0.33, 1.2), *fallen[2:]]
    assert seen([*HEALTHY, *broken]) == [""] * 9


def test_a_fall_with_a_rising_loss_is_something_else() -> None:
    assert seen([*HEALTHY, *[(0.6, 0.4, 0.28, 1.7)] * 5]) == [""] * 9


def test_few_images_prove_little() -> None:
    """Of 25 images, 0.16 is what chance alone does; of 1000 it is not."""
    fallen = [*HEALTHY, *[(0.75, 0.42, 0.20, 1.3)] * 3]
    assert seen(fallen, n=1000)[-1] == "robust"
    assert seen(fallen, n=25)[-1] == ""


def test_an_epoch_to_go_back_to_is_near_the_best() -> None:
    watch = Watch().after(Reading(1, 0.7, 0.5, 0.4, 1.0, 1000))
    for robust, good in ((0.41, True), (0.36, True), (0.34, False), (0.1, False)):
        now = Reading(2, 0.7, robust + 0.1, robust, 0.9, 1000)
        assert watch.after(now).is_good(now) == good


def test_a_watch_survives_json() -> None:
    watch = Watch().after(Reading(1, 0.7, 0.5, 0.4, 1.0, 1000))
    assert Watch.from_json(json.loads(json.dumps(asdict(watch)))) == watch
    assert Watch.from_json(asdict(Watch())) == Watch()
