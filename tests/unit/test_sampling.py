"""Stopping early: a fair sample, an interval that keeps its word, and what a reader is told."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from test_evaluation_engine import EPS, blobs, trained
from torch import Tensor, nn

import spat
from spat.evaluation import _anytime, _attempt
from spat.evaluation._sampling import half_width, sampled, time_left
from spat.limits import Limits, limits
from spat.records import Event, Outcomes
from spat.statistics import wilson

Data = tuple[Tensor, Tensor]


@pytest.mark.parametrize(("n", "batch"), [(1, 64), (16, 64), (17, 1), (1000, 64), (5000, 512)])
def test_waves_are_all_images_once_in_the_seeds_order(n: int, batch: int) -> None:
    waves = sampled(n, 3, batch)
    assert torch.equal(torch.cat(waves).sort().values, torch.arange(n))
    assert all(torch.equal(at, at.sort().values) for at in waves)
    assert max(map(len, waves)) <= max(16, 2 * batch)
    again = sampled(n, 3, batch)
    assert all(torch.equal(a, b) for a, b in zip(waves, again, strict=True))
    if n > 16:
        assert not torch.equal(waves[0], sampled(n, 4, batch)[0])


def test_every_image_is_as_likely_as_any_to_come_early() -> None:
    n, seeds = 60, 600
    seen = torch.zeros(n)
    for seed in range(seeds):
        first = torch.cat(sampled(n, seed, 8)[:2])  # 32 of 60
        seen[first] += 1
    share, deviation = 32 / 60, math.sqrt(32 / 60 * 28 / 60 / seeds)
    assert float((seen / seeds - share).abs().max()) < 4.5 * deviation


def stops_at(held: np.ndarray[Any, Any], ends: list[int], within: float) -> tuple[int, int]:
    """k of n where the rule by width stops on these images, in their random order."""
    for n in ends:
        k = int(held[:n].sum())
        if half_width(k, n) <= within:
            break
    return k, n


@pytest.mark.parametrize("within", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
def test_an_interval_that_is_just_narrow_enough_still_covers(within: float, p: float) -> None:
    """Looking after each wave, and stopping by what is seen, costs next to no coverage."""
    rng = np.random.default_rng(1)
    ends = np.cumsum([len(at) for at in sampled(4000, 0, 64)]).tolist()
    covered, trials = 0, 800
    for _ in range(trials):
        k, n = stops_at(rng.random(4000) < p, ends, within)
        low, high = wilson(k, n)
        assert n == 4000 or (high - low) / 2 <= within
        covered += low <= p <= high
    assert covered / trials > 0.92


def test_a_budget_of_time_hardly_shifts_the_share() -> None:
    """Images that hold take ten times as long here; the wave that is cut off is left out."""
    rng, p, trials = np.random.default_rng(2), 0.5, 800
    ends = np.cumsum([len(at) for at in sampled(4000, 0, 8)])
    found, covered = [], 0
    for _ in range(trials):
        held = rng.random(1200) < p
        clock = np.cumsum(np.where(held, 1.0, 0.1))
        n = int(ends[ends <= np.searchsorted(clock, 200.0)][-1])
        k = int(held[:n].sum())
        low, high = wilson(k, n)
        covered += low <= p <= high
        found.append(k / n)
    width = 2 * half_width(180, 360)
    assert abs(float(np.mean(found)) - p) < width / 2 / math.sqrt(300) * 3
    assert covered / trials > 0.92


def test_time_left_goes_by_the_sooner_limit() -> None:
    within = Limits(within=half_width(50, 100) / 2)
    assert time_left(50, 100, 10_000, 10.0, within) == pytest.approx(30.0)  # four times as many
    assert time_left(50, 100, 200, 10.0, within) == pytest.approx(10.0)
    assert time_left(50, 100, 10_000, 10.0, Limits(seconds=15.0)) == pytest.approx(5.0)
    assert time_left(50, 100, 10_000, 20.0, Limits(seconds=15.0)) == 0.0


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained()


@pytest.fixture(scope="module")
def data() -> Data:
    return blobs(200, 1)


def test_width_stops_with_rows_of_the_whole(model: nn.Module, data: Data) -> None:
    whole = spat.evaluate(model, *data, "pgd-3 cw-3", eps=EPS)
    seen: list[Event] = []
    kept: dict[str, list[int]] = {}

    def keep(label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        kept.setdefault(label, []).extend(index.tolist())

    part = spat.evaluate(
        model, *data, "pgd-3 cw-3", eps=EPS, within="10pp", sink=seen.append, keep=keep
    )
    n = len(part)
    assert 16 < n < 200
    assert part.ids.tolist() == sorted(part.ids.tolist())
    for name, found in part.attacks.items():
        assert np.array_equal(found.broken, whole.attacks[name].broken[part.ids])
        assert np.array_equal(found.predicted, whole.attacks[name].predicted[part.ids])
        assert sorted(kept[name]) == part.ids[part.correct].tolist()
    waves = [event.values for event in seen if event.kind == "wave"]
    assert [wave["n"] for wave in waves] == [16, 32, 64, 128][: len(waves)]
    assert (waves[-1]["high"] - waves[-1]["low"]) / 2 <= 0.1 < half_width(16, 32)
    assert waves[-1]["worst"] == part.accuracy("worst")
    assert part.how["images"] == n
    assert part.how["of"] == 200
    assert part.how["chosen"] == "the first of a random order, seed 0"
    note = f"{n} of 200 images were attacked, the first of a random order (seed 0): half the 95% "
    assert part.notes[-1].startswith(note)
    assert part.notes[-1].endswith(" pp, of 10 pp asked for.")


def test_where_all_images_are_not_enough_it_says_so(model: nn.Module, data: Data) -> None:
    x, y = data[0][:40], data[1][:40]
    whole = spat.evaluate(model, x, y, "fgsm", eps=EPS)
    part = spat.evaluate(model, x, y, "fgsm", eps=EPS, within=0.01)
    assert part.attacks["fgsm"].to_json() == whole.attacks["fgsm"].to_json()
    assert part.how["chosen"] == "all"
    assert part.notes[-1].startswith("all 40 images were attacked, and half the 95% interval of")
    assert part.notes[-1].endswith(" pp, not 1 pp.")


def test_time_stops_between_waves(
    model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by a second whenever it is read: about four times a wave."""
    ticks = itertools.count()
    monkeypatch.setattr(_attempt.Clock, "spent", property(lambda clock: float(next(ticks))))
    begun: list[int] = []
    real = _anytime.Wave.run

    def run(wave: _anytime.Wave) -> Outcomes:
        begun.append(len(wave.at))
        return real(wave)

    monkeypatch.setattr(_anytime.Wave, "run", run)
    part = spat.evaluate(model, *data, "pgd-3", eps=EPS, budget="30s", batch_size=16)
    assert sum(begun) == len(part)  # none was begun in vain
    assert 0 < len(part) < 200
    assert part.notes[-1].endswith("(seed 0): its budget of 30 s was spent.")


def test_a_wave_that_time_cuts_off_is_not_counted(
    model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third wave takes longer than those before it let expect."""
    kept: list[int] = []
    real = _anytime.Wave._attempt

    def attempt(wave: _anytime.Wave, number: int) -> _attempt.Attempt:
        if (wave.number, number) == (2, 1):  # its first attack is over
            wave.bench.clock.before = 1e9
        return real(wave, number)

    monkeypatch.setattr(_anytime.Wave, "_attempt", attempt)
    part = spat.evaluate(
        model, *data, "pgd-3 fgsm", eps=EPS, budget="5m", batch_size=4,
        keep=lambda label, index, x_adv, predicted: kept.extend(index.tolist()),
    )  # fmt: skip
    assert len(part) == 32
    assert set(kept) <= set(part.ids.tolist())


def test_time_for_no_wave_is_told(model: nn.Module, data: Data) -> None:
    with pytest.raises(spat.UserError) as error:
        spat.evaluate(model, *data, "pgd-3", eps=EPS, budget="0.0001s")
    assert str(error.value) == (
        "a budget of 0.0001 s ended before the first 16 images were attacked: "
        "give it more time, or fewer attacks."
    )


def test_without_an_attack_it_is_clean_accuracy(model: nn.Module, data: Data) -> None:
    part = spat.evaluate(model, *data, "clean", within="10pp")
    assert len(part) < 200
    assert "interval of clean accuracy is" in part.notes[-1]


@pytest.mark.parametrize("given", ["1", "0pp", "50pp", "-1pp", "1.2.3pp", "wide", 0.0, 1, "inf"])
def test_nonsense_for_within(given: str | float) -> None:
    text = "within must be half the width of an interval, above 0 and below 50 percentage points"
    with pytest.raises(spat.UserError, match=text):
        limits(given, None)


@pytest.mark.parametrize("given", ["0s", "-5m", "200steps", "soon", "1.2.3s", 0, "nan"])
def test_nonsense_for_budget(given: str | float) -> None:
    with pytest.raises(spat.UserError, match=r"budget must be a time such as 30s, 5m or 2h, got"):
        limits(None, given)


def test_what_is_written_is_read() -> None:
    assert limits(None, None) == Limits()
    assert not limits("none", None)
    assert limits("1pp", "5m") == Limits(0.01, 300.0)
    assert limits(0.025, 2) == Limits(0.025, 120.0)
    assert limits("0.5 PP", "1.5h") == Limits(0.005, 5400.0)
