"""Coordinates in closed form; gaps, single points and words for those who cannot see."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spat.records import Event
from spat.reporting.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Curve, chart, ticks
from spat.reporting.training import by_epoch, training

NAN = float("nan")


def drawn(*curves: Curve, **options: object) -> ElementTree.Element:
    svg = chart("A title", curves, x_label="epoch", y_label="loss", **options)  # type: ignore[arg-type]
    return ElementTree.fromstring(svg)


def places(svg: ElementTree.Element) -> list[list[tuple[float, ...]]]:
    """The points of every line."""
    lines = (line.attrib["points"].split() for line in svg.iter("polyline"))
    return [[tuple(map(float, point.split(","))) for point in line] for line in lines]


def test_a_line_is_the_straight_map_of_its_values() -> None:
    svg = drawn(Curve("loss", [(1, 0.0), (2, 50.0), (5, 100.0)]), y_range=(0, 100))
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    second = (LEFT + (right - LEFT) / 4, (TOP + floor) / 2)
    assert places(svg) == [[(LEFT, floor), pytest.approx(second), (right, TOP)]]
    discs = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in svg.iter("circle")]
    assert discs == places(svg)[0]


def test_a_gap_breaks_the_line() -> None:
    points = [(1, 1.0), (2, 2.0), (3, None), (4, NAN), (5, 3.0), (6, 1.0), (7, math.inf), (8, 2.0)]
    svg = drawn(Curve("loss", points))
    assert [len(line) for line in places(svg)] == [2, 2]
    assert len(list(svg.iter("circle"))) == 5  # the lonely last point has only its marker


def test_a_single_point_stands_in_the_middle() -> None:
    svg = drawn(Curve("loss", [(3, 0.5)]), y_range=(0, 1))
    (disc,) = svg.iter("circle")
    assert float(disc.attrib["cx"]) == (LEFT + WIDTH - RIGHT) / 2
    assert float(disc.attrib["cy"]) == (TOP + HEIGHT - BOTTOM) / 2
    labels = [text.text for text in svg.iter("text")]
    assert "3" in labels
    assert "4" not in labels  # no tick where there is no epoch


def test_nothing_but_gaps_still_draws_axes() -> None:
    svg = drawn(Curve("loss", [(1, None), (2, NAN)]))
    assert places(svg) == []
    assert "no values" in str(svg.findtext("desc"))


@pytest.mark.parametrize("values", [(0.0, 0.0), (-3.0, -1.0), (1e-9, 2e-9), (1e9, 3e9)])
def test_any_range_of_values_fits_the_frame(values: tuple[float, float]) -> None:
    (line,) = places(drawn(Curve("loss", [(1, values[0]), (2, values[1])])))
    assert all(TOP <= y <= HEIGHT - BOTTOM for _, y in line)


def test_many_points_have_no_markers() -> None:
    svg = drawn(Curve("loss", [(i, 1.0) for i in range(41)]))
    assert not list(svg.iter("circle"))


def test_lines_differ_by_colour_dash_and_marker() -> None:
    svg = drawn(Curve("a", [(1, 1.0), (2, 2.0)]), Curve("b", [(1, 2.0), (2, 1.0)]))
    first, second = svg.iter("polyline")
    assert first.attrib["stroke"] != second.attrib["stroke"]
    assert "stroke-dasharray" not in first.attrib
    assert "stroke-dasharray" in second.attrib
    assert list(svg.iter("circle"))
    assert list(svg.iter("rect"))


def test_titles_and_descriptions_are_there_and_escaped() -> None:
    svg = drawn(Curve("<b>&", [(1, 2.0), (4, 0.25)]))
    assert svg.attrib["role"] == "img"
    named = svg.attrib["aria-labelledby"].split()
    assert [svg.find(kind).attrib["id"] for kind in ("title", "desc")] == named  # type: ignore[union-attr]
    assert svg.findtext("desc") == "<b>&: 2 at epoch 1, 0.25 at epoch 4."
    assert {"epoch", "loss"} <= {text.text for text in svg.iter("text")}


def test_a_mark_names_its_place() -> None:
    svg = drawn(Curve("loss", [(0, 1.0), (4, 2.0)]), mark=(3, "best: epoch 3"))
    (mark,) = (line for line in svg.iter("line") if line.get("class") == "mark")
    assert float(mark.attrib["x1"]) == pytest.approx(LEFT + 0.75 * (WIDTH - RIGHT - LEFT))
    assert "best: epoch 3" in [text.text for text in svg.iter("text")]


def test_ticks_by_hand() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(1, 20) == [5, 10, 15, 20]
    assert ticks(-3, 4) == [-2, 0, 2, 4]


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_inside(low: float, span: float) -> None:
    assume(span > 1e-9 * abs(low))
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-6 * span <= t <= low + (1 + 1e-6) * span for t in found)


def epoch(number: int, **values: object) -> Event:
    return Event("epoch", {"epoch": number, **values}, 0.0)


def test_an_epoch_gone_through_twice_counts_once_as_it_ended() -> None:
    events = [epoch(1, loss=3.0), epoch(2, loss=9.0), Event("note", {}), epoch(2, loss=2.0)]
    assert [(at, values["loss"]) for at, values in by_epoch(events).items()] == [(1, 3), (2, 2)]


def test_three_charts_and_the_last_best_epoch() -> None:
    both = {"val_clean": 0.5, "val_robust": 0.25, "val_attack": "pgd-10 eps 0.3", "lr": 0.1}
    events = [epoch(i, loss=1.0 / i, best=i < 3, **both) for i in (1, 2, 3)]
    charts = training(events)
    assert re.findall("<figcaption>(.*?)</figcaption>", charts) == [
        "Training loss",
        "Validation accuracy",
        "Learning rate",
    ]
    assert "best: epoch 2" in charts
    middle = (LEFT + WIDTH - RIGHT) / 2
    assert f'<line class="mark" x1="{middle:g}"' in charts
    assert "clean: 50 at epoch 1, 50 at epoch 3. pgd-10 eps 0.3: 25 at epoch 1" in charts


def test_without_a_validation_split_there_is_no_chart_of_it() -> None:
    charts = training([epoch(1, loss=1.0, val_clean=None, val_robust=None, lr=0.1)])
    assert charts.count("<svg") == 2
    assert "Validation" not in charts


@pytest.mark.parametrize("events", [[], [Event("start", {})]])
def test_without_an_epoch_there_is_nothing(events: list[Event]) -> None:
    assert training(events) == ""


def test_epochs_with_missing_keys_are_drawn_as_far_as_they_go() -> None:
    events = [Event("epoch", {}), Event("epoch", {"loss": 2.0}), Event("epoch", {"lr": "fast"})]
    assert list(by_epoch(events)) == [1, 2, 3]
    assert training(events).count("<svg") == 1
