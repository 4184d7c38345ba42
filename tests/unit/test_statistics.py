"""Intervals and tests against published tables, closed forms and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spat.errors import UserError
from spat.statistics import Spread, mcnemar, over_seeds, student, wilson

Z95 = 1.959963984540054


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_is_as_newcombe_1998_tabulates_it(k: int, n: int, low: float, high: float) -> None:
    assert wilson(k, n) == pytest.approx((low, high), abs=5e-5)


@settings(deadline=None)
@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_where_the_score_test_just_rejects(case: tuple[int, int]) -> None:
    k, n = case
    for bound in wilson(k, n):
        assert 0 <= bound <= 1
        if 0 < bound < 1:
            assert abs(k / n - bound) == pytest.approx(
                Z95 * math.sqrt(bound * (1 - bound) / n), rel=1e-6, abs=1e-12
            )


def test_wilson_reaches_the_ends_exactly() -> None:
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_wilson_of_one_example_is_wide_and_inside() -> None:
    low, high = wilson(1, 1)
    assert (low, high) == pytest.approx((1 / (1 + Z95**2), 1.0))


def test_wilson_is_wider_with_more_confidence() -> None:
    low, high = wilson(30, 100, confidence=0.99)
    assert low < wilson(30, 100)[0] < wilson(30, 100)[1] < high


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3)])
def test_wilson_refuses_what_is_no_share(k: int, n: int) -> None:
    with pytest.raises(UserError, match=rf"0 <= k <= n, got k = {k} of n = 3\."):
        wilson(k, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_confidence_lies_between_0_and_1(confidence: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        wilson(1, 2, confidence)


def test_mcnemar_is_the_hand_computed_binomial_tail() -> None:
    a = [True] * 10 + [False] * 2 + [True] * 50
    b = [False] * 10 + [True] * 2 + [True] * 50
    assert mcnemar(a, b) == 2 * (1 + 12 + 66) / 4096
    assert mcnemar(a, b) == mcnemar(b, a)


@pytest.mark.parametrize("m", range(9))
def test_mcnemar_counts_the_coin_flips_at_least_as_far_from_even(m: int) -> None:
    for won in range(m + 1):
        a = np.arange(m) < won
        flips = (sum(each) for each in itertools.product((0, 1), repeat=m))
        extreme = sum(abs(k - m / 2) >= abs(won - m / 2) for k in flips)
        assert mcnemar(a, ~a) == pytest.approx(extreme / 2**m)


def test_mcnemar_does_not_overflow_on_a_whole_test_set() -> None:
    a = np.arange(50_000) % 2 == 0
    assert mcnemar(a, ~a) == 1.0
    assert mcnemar(np.ones(50_000, bool), np.zeros(50_000, bool)) == 0.0
    assert mcnemar(a, a) == 1.0


def test_mcnemar_needs_the_same_examples() -> None:
    with pytest.raises(UserError, match=r"got \(2,\) and \(3,\)"):
        mcnemar([True, False], [True, False, True])


@pytest.mark.parametrize(
    ("df", "t"),
    [
        (1, 12.7062047),
        (2, 4.3026527),
        (3, 3.1824463),
        (4, 2.7764451),
        (9, 2.2621572),
        (29, 2.0452296),
    ],
)
def test_student_is_the_tabulated_quantile(df: int, t: float) -> None:
    assert student(0.95, df) == pytest.approx(t, abs=5e-8)


def test_student_has_closed_forms_for_one_and_two_degrees() -> None:
    assert student(0.9, 1) == pytest.approx(math.tan(math.pi * 0.9 / 2), rel=1e-12)
    assert student(0.9, 2) == pytest.approx(0.9 * math.sqrt(2 / (1 - 0.81)), rel=1e-12)


def test_student_tends_to_the_normal() -> None:
    assert student(0.95, 100_000) == pytest.approx(Z95, abs=1e-4)


def test_over_seeds_is_students_interval() -> None:
    spread = over_seeds([0.5, 0.6, 0.7])
    half = 4.302652729749464 * 0.1 / math.sqrt(3)
    assert spread.mean == pytest.approx(0.6)
    assert spread.deviation == pytest.approx(0.1)
    assert (spread.low, spread.high) == pytest.approx((0.6 - half, 0.6 + half))
    assert spread.n == 3


def test_one_seed_has_no_spread() -> None:
    assert over_seeds([0.25]) == Spread(0.25, None, None, None, 1)


def test_no_seed_has_no_mean() -> None:
    with pytest.raises(UserError, match="at least one value"):
        over_seeds([])
