"""Learning-rate schedules and ramps against their definitions."""

from __future__ import annotations

import pytest

import spat
from golden.vectors import CASES
from spat.config import Training
from spat.errors import UserError
from spat.recipes.cifar10_native import cifar10_native
from spat.training.schedule import learning_rate, ramped


def test_stepwise_rate_drops_at_the_start_of_its_epochs() -> None:
    settings = Training(epochs=100, lr=0.1, milestones=(75, 90))
    rates = [learning_rate(settings, epoch - 1) for epoch in (1, 74, 75, 89, 90, 100)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert learning_rate(settings, 73.99) == pytest.approx(0.1)


def test_cosine_and_one_cycle() -> None:
    cosine = Training(epochs=10, lr=0.2, schedule="cosine")
    assert [learning_rate(cosine, e) for e in (0, 5, 10)] == pytest.approx([0.2, 0.1, 0])
    cycle = Training(epochs=10, lr=0.2, schedule="one-cycle")
    assert [learning_rate(cycle, e) for e in (0, 1.5, 3, 6.5, 10)] == pytest.approx(
        [0, 0.1, 0.2, 0.1, 0]
    )


def test_seat_lowers_the_rate_linearly_as_its_code_does() -> None:
    case = CASES["seat.lr.resnet18"]
    settings = cifar10_native("seat").training
    rates = [learning_rate(settings, epoch - 1) for epoch in case["inputs"]["epoch"]]
    assert rates == pytest.approx(case["expected"]["lr"], rel=1e-12)


def test_levels_name_the_drops_and_must_be_as_many() -> None:
    settings = Training(epochs=120, lr=0.1, milestones=(60, 90, 110), levels=(0.1, 0.01, 0.005))
    rates = [learning_rate(settings, epoch - 1) for epoch in (59, 60, 90, 110)]
    assert rates == pytest.approx([0.1, 0.01, 0.001, 0.0005])
    with pytest.raises(UserError, match=r"levels must be as many as milestones \(2\), got 1"):
        Training(levels=(0.1,))


def test_warmup_rises_to_the_schedule() -> None:
    settings = Training(epochs=10, lr=0.2, schedule="constant", warmup=2)
    assert [learning_rate(settings, e) for e in (0, 1, 2, 5)] == pytest.approx([0, 0.1, 0.2, 0.2])


def test_fewer_steps_are_longer_ones() -> None:
    defence = spat.defence(
        "spat", **{"attack.steps": 10, "attack.eps": 0.3, "attack.step_size": 0.075}
    )
    settings = Training(attack_ramp=0.5)
    early = ramped(defence, settings, 0.1).attack
    assert early.steps == 2
    assert early.step_size == pytest.approx(min(0.75 / 2, 1.25 * 0.3))
    assert ramped(defence, settings, 0.0).attack.steps == 1
    late = ramped(defence, settings, 0.4).attack
    assert (late.steps, late.step_size) == (8, pytest.approx(0.75 / 8))
    assert ramped(defence, settings, 0.5) is defence


def test_eps_grows_from_a_tenth_and_the_step_with_it() -> None:
    defence = spat.defence("spat", **{"attack.eps": 0.3, "attack.step_size": 0.075})
    settings = Training(eps_ramp=0.4)
    at = [ramped(defence, settings, done).attack for done in (0.0, 0.2, 0.4)]
    assert [a.eps for a in at] == pytest.approx([0.03, 0.165, 0.3])
    assert [a.step_size for a in at] == pytest.approx([0.0075, 0.04125, 0.075])


def test_no_ramp_changes_nothing() -> None:
    defence = spat.defence("spat")
    assert ramped(defence, Training(), 0.0) is defence
