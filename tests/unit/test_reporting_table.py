"""The final table, exactly as printed, in Unicode, in ASCII and in HTML."""

from __future__ import annotations

import io

import numpy as np
import pytest

from spat.records import Attacked, Measured, Outcomes, Record
from spat.reporting.table import fraction, html_table, print_table, text_table
from spat.results import measured

ROWS = (
    Measured("clean", 0.987, 0.9779, 0.9924, 1000),
    Measured("pgd-40 scale 20", 0.871, 0.8488, 0.8904, 1000),
    Measured("cw", 0.9, 0.8799, 0.9171, 1000),
    Measured("worst", 0.85, 0.8265, 0.8708, 1000),
)
PLAIN = """\
attack           accuracy %   95% interval     n  eps (Linf)
---------------  ----------  -------------  ----  ----------
clean                 98.70  97.79 - 99.24  1000           0
pgd-40 scale 20       87.10  84.88 - 89.04  1000       8/255
cw                    90.00  87.99 - 91.71  1000       8/255
worst case            85.00  82.65 - 87.08  1000       8/255
worst case = pointwise over pgd-40 scale 20, cw: \
an image counts only if none of these attacks breaks it
"""


def record(*rows: Measured, eps: float = 8 / 255, norm: str = "linf") -> Record:
    return Record({}, "", eps, norm, rows, {}, "", "", "", {}, {})


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")


def written(to: io.TextIOWrapper) -> str:
    to.flush()
    assert isinstance(to.buffer, io.BytesIO)
    return to.buffer.getvalue().decode(to.encoding)


def test_the_table_in_ascii() -> None:
    assert text_table(record(*ROWS), plain=True) + "\n" == PLAIN


def test_the_table_in_unicode_differs_only_in_its_signs() -> None:
    table = text_table(record(*ROWS))
    plain = text_table(record(*ROWS), plain=True)
    assert "L∞" in table
    assert "97.79 \u2013 99.24" in table
    signs = str.maketrans({"─": "-", "\u2013": "-", "∞": "inf"})
    assert [row.split() for row in table.translate(signs).splitlines()[2:]] == [
        row.split() for row in plain.splitlines()[2:]
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stream_that_cannot_show_unicode_gets_ascii(encoding: str) -> None:
    out = stream(encoding)
    print_table(record(*ROWS), stream=out)
    assert written(out) == text_table(record(*ROWS), plain=True) + "\n"


def test_a_name_the_stream_cannot_show_is_spelled_out() -> None:
    out = stream("ascii")
    print_table(record(Measured("π", 0.5, 0.1, 0.9, 4)), stream=out)
    assert "\\u03c0" in written(out)


def test_a_stream_that_can_gets_unicode(capsys: pytest.CaptureFixture[str]) -> None:
    out = stream("utf-8")
    print_table(record(*ROWS), stream=out)
    assert written(out) == text_table(record(*ROWS)) + "\n"
    print_table(record(*ROWS))
    assert capsys.readouterr().out.splitlines()[0].startswith("attack")


@pytest.mark.parametrize(
    ("eps", "shown"),
    [
        (8 / 255, "8/255"),
        (float(np.float32(8 / 255)), "8/255"),
        (1 / 255, "1/255"),
        (128 / 255, "128/255"),
        (0.031, "0.031"),
        (0.3, "0.3"),
        (0.2, "0.2"),
        (0.0, "0"),
        (1.0, "1"),
        (0.5, "0.5"),
        (0.1 / 255, "0.000392157"),
    ],
)
def test_eps_reads_as_people_write_it(eps: float, shown: str) -> None:
    assert fraction(eps) == shown


def test_without_an_attack_nothing_is_claimed() -> None:
    table = text_table(record(*ROWS[:1]))
    assert table.endswith("no attack was run: this says nothing about robustness")
    assert "worst" not in table


def test_accuracies_of_0_and_100_percent() -> None:
    rows = (Measured("clean", 1.0, 0.0, 1.0, 1), Measured("cw", 0.0, 0.0, 0.7935, 1))
    assert "100.00" in text_table(record(*rows))
    assert "0.00 - 79.35" in text_table(record(*rows), plain=True)


def test_published_values_stand_beside_the_measured() -> None:
    rows = (ROWS[0], Measured("cw", 0.5, 0.4, 0.6, 10, 0.481))
    head, _, clean, attacked, _ = text_table(record(*rows, norm="l2"), plain=True).splitlines()
    assert head.endswith("eps (L2)  published %")
    assert clean.endswith("1000         0")
    assert attacked.endswith("8/255        48.10")


def test_html_holds_the_same_cells_and_escapes_names() -> None:
    table = html_table(record(Measured("<cw>&", 0.5, 0.4, 0.6, 10), eps=0.3))
    assert '<th scope="row">&lt;cw&gt;&amp;</th>' in table
    assert "<td>50.00</td><td>40.00 \u2013 60.00</td><td>10</td><td>0.3</td>" in table
    assert "pointwise over &lt;cw&gt;&amp;:" in table
    assert html_table(record(*ROWS)).count("<tr") == 5


def test_outcomes_are_counted_into_the_same_table() -> None:
    y, none = np.array([0, 1]), np.zeros(2, np.float32)
    cw = Attacked(np.array([0, 0]), np.array([False, True]), none, np.array([-1, -1]))
    found = Outcomes(np.arange(2), y, y, {"cw": cw}, 8 / 255, "linf")
    assert text_table(found) == text_table(record(*measured(found)))
    row = text_table(found, plain=True).splitlines()[3]
    assert row.split() == ["cw", "50.00", "9.45", "-", "90.55", "2", "8/255"]
