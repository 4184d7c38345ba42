"""The chart of costs: marks where their values are, names apart, a file that stands alone."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from spat.reporting.scatter import Mark, described, scatter

MARKS = [
    Mark("slow & sure", 100.0, 80.0, 75.0, 85.0, 0),
    Mark("quick", 10.0, 20.0, 15.0, 26.0, 1),
    Mark("quicker", 10.5, 20.5, 15.0, 26.0, 2),
]
SPACE = "{http://www.w3.org/2000/svg}"


def drawn() -> ElementTree.Element:
    chart = scatter("Cost", MARKS, ["a", "b", "c"], x_label="seconds", y_label="%")
    return ElementTree.fromstring(chart)


def test_it_is_an_svg_of_its_own_and_tells_every_mark_in_words() -> None:
    root = drawn()
    assert root.tag == f"{SPACE}svg"
    assert root.find(f"{SPACE}desc").text == described(MARKS, "seconds")  # type: ignore[union-attr]
    assert "slow & sure: 80.0 at seconds 100." in described(MARKS, "seconds")
    assert "var(" not in ElementTree.tostring(root, encoding="unicode")


def test_marks_are_where_their_values_are() -> None:
    groups = drawn().findall(f"{SPACE}g")
    circle = groups[0].find(f"{SPACE}circle")
    assert circle is not None
    whisker = groups[0].find(f"{SPACE}line")
    assert whisker is not None
    top, bottom = (float(whisker.attrib[end]) for end in ("y2", "y1"))
    assert float(circle.attrib["cy"]) == pytest.approx((top + bottom) / 2, abs=0.02)
    other = groups[1].find(f"{SPACE}rect")
    assert other is not None
    left = float(other.attrib["x"]) + 4.5
    assert (float(circle.attrib["cx"]) - 56) / (left - 56) == pytest.approx(10, rel=0.01)


def test_names_do_not_cover_each_other() -> None:
    heights = [float(g.find(f"{SPACE}text").attrib["y"]) for g in drawn().findall(f"{SPACE}g")]  # type: ignore[union-attr]
    assert abs(heights[1] - heights[2]) >= 14
    assert len(set(re.findall("#[0-9a-f]{6}", str(ElementTree.tostring(drawn()))))) == 3
