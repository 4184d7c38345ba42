"""Intervals as users write them."""

from __future__ import annotations

import pytest

from spat.errors import UserError
from spat.interval import Interval, interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10s", Interval(seconds=10)),
        ("0.5s", Interval(seconds=0.5)),
        ("5m", Interval(seconds=300)),
        ("2 h", Interval(seconds=7200)),
        ("200steps", Interval(steps=200)),
        ("1 step", Interval(steps=1)),
        ("200STEPS", Interval(steps=200)),
        ("10", Interval(seconds=600)),
        (1e-4, Interval(seconds=0.006)),
        (10, Interval(seconds=600)),
    ],
)
def test_times_and_steps(text: str | float, expected: Interval) -> None:
    assert interval(text, "save_every") == expected


@pytest.mark.parametrize(
    "text", ["", "0s", "-5m", "5 minutes", "steps", "1.5steps", "1.2.3s", "nan", "inf", "1e999s", 0]
)
def test_anything_else_is_refused_with_the_way_out(text: str | float) -> None:
    with pytest.raises(UserError) as caught:
        interval(text, "save_every")
    assert str(caught.value) == (
        "save_every must be a time or a number of steps such as 10s, 5m, 2h or 200steps, "
        f"got {text!r}."
    )


def test_over_when_the_time_or_the_steps_are_reached() -> None:
    ten, two = interval("10s", "x"), interval("2steps", "x")
    assert [ten.is_over(seconds=s, steps=10**9) for s in (9.9, 10.0)] == [False, True]
    assert [two.is_over(seconds=1e9, steps=n) for n in (1, 2)] == [False, True]
