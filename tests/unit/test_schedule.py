"""Learning-rate schedules and ramps against their definitions."""

from __future__ import annotations

import pytest

import spat
from golden.vectors import CASES
from spat.config import Training
from spat.defences._base import Progress
from spat.errors import UserError
from spat.recipes.cifar10_native import cifar10_native
from spat.training.schedule import learning_rate, ramped, value_now


def at(done: float, epochs: int = 10) -> Progress:
    """Where training is when this share of 1,000 updates is done."""
    step = round(1000 * done)
    return Progress(step * epochs // 1000 + 1, epochs, step, 1000)


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
    early = ramped(defence, settings, at(0.1)).attack
    assert early.steps == 2
    assert early.step_size == pytest.approx(min(0.75 / 2, 1.25 * 0.3))
    assert ramped(defence, settings, at(0.0)).attack.steps == 1
    late = ramped(defence, settings, at(0.4)).attack
    assert (late.steps, late.step_size) == (8, pytest.approx(0.75 / 8))
    assert ramped(defence, settings, at(0.5)) is defence


def test_eps_grows_from_a_tenth_and_the_step_with_it() -> None:
    defence = spat.defence("spat", **{"attack.eps": 0.3, "attack.step_size": 0.075})
    settings = Training(eps_ramp=0.4)
    attacks = [ramped(defence, settings, at(done)).attack for done in (0.0, 0.2, 0.4)]
    assert [a.eps for a in attacks] == pytest.approx([0.03, 0.165, 0.3])
    assert [a.step_size for a in attacks] == pytest.approx([0.0075, 0.04125, 0.075])


def test_no_ramp_changes_nothing() -> None:
    defence = spat.defence("spat")
    assert ramped(defence, Training(), at(0.0)) is defence


QUICK = {"attack.steps": 10, "attack.eps": 0.3, "attack.step_size": 0.075}


def test_values_change_at_the_first_step_of_their_milestones() -> None:
    """Two updates an epoch; no phase is lost to rounding where steps do not divide evenly."""
    updates = [Progress(step // 2 + 1, 6, step, 12) for step in range(12)]
    given = [value_now((1, 5, 10), (2, 5), progress) for progress in updates]
    assert given == [1, 1, 5, 5, 5, 5, 5, 5, 10, 10, 10, 10]
    assert [value_now("abc", (), p) for p in updates] == list("aaaabbbbcccc")
    for total in range(3, 40):
        phases = [value_now("abc", (), Progress(1, 1, step, total)) for step in range(total)]
        counts = [phases.count(phase) for phase in "abc"]
        assert "".join(phases) == "".join(sorted(phases))
        assert max(counts) - min(counts) <= 1


def test_steps_by_phases_cover_the_ball_as_all_of_them_did() -> None:
    defence = spat.defence("spat", **QUICK)
    settings = Training(epochs=10, attack_steps=(1, 5, 10), attack_milestones=(4, 7))
    attacks = [ramped(defence, settings, at(done)).attack for done in (0.0, 0.3, 0.6)]
    assert [a.steps for a in attacks] == [1, 5, 10]
    assert [a.step_size for a in attacks] == pytest.approx([1.25 * 0.3, 0.15, 0.075])
    assert ramped(defence, settings, at(0.9)) is defence


def test_sizes_of_steps_are_shares_of_the_eps_of_now() -> None:
    defence = spat.defence("spat", **QUICK)
    settings = Training(attack_sizes=(0.5, 0.25), eps_ramp=0.4, epochs=10, attack_milestones=(6,))
    attacks = [ramped(defence, settings, at(done)).attack for done in (0.2, 0.5)]
    assert [a.eps for a in attacks] == pytest.approx([0.165, 0.3])
    assert [a.step_size for a in attacks] == pytest.approx([0.5 * 0.165, 0.25 * 0.3])
    assert [a.steps for a in attacks] == [10, 10]


def test_an_attack_without_a_step_size_keeps_none() -> None:
    """Its steps are 2 eps / steps long, however many there are."""
    defence = spat.defence("fgsm-rs")
    assert ramped(defence, Training(attack_steps=(3,)), at(0.0)).attack.step_size is None
