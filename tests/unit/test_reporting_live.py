"""The live display: a moving part on a terminal, plain lines everywhere else."""

from __future__ import annotations

import errno
import io
import re
import sys
import warnings
from typing import TextIO

import pytest

from spat.records import Event
from spat.reporting import Live
from spat.reporting.live import is_plain

STEP = {"epoch": 1, "epochs": 2, "step": 3, "steps": 8, "loss": 0.5, "images_per_s": 10.0}
EPOCH = {
    **STEP,
    "val_clean": 0.5,
    "val_robust": 0.25,
    "val_attack": "pgd-10 eps 0.3",
    "best": False,
}
TERMINAL = {"TERM": "xterm-256color"}


class Terminal(io.TextIOWrapper):
    """A terminal in memory."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="\n")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def run(stream: TextIO, *events: Event) -> None:
    with Live(stream) as live:
        for event in events:
            live(event)


def test_a_pipe_gets_every_epoch_and_a_step_every_ten_seconds() -> None:
    out = io.StringIO()
    steps = [Event("step", {**STEP, "step": i}, float(i)) for i in range(1, 26)]
    run(out, Event("start", {"train": 5}, 0.0), *steps, Event("epoch", EPOCH, 26.0))
    assert out.getvalue().splitlines() == [
        "training: 5 training images",
        "epoch 1/2  step 10/8  loss 0.5  10 images/s",
        "epoch 1/2  step 20/8  loss 0.5  10 images/s",
        "epoch 1/2  loss 0.5  validation: clean 50.0%, pgd-10 eps 0.3 25.0%  10 images/s",
    ]


def test_a_long_line_stays_one_line_in_a_file() -> None:
    out = io.StringIO()
    run(out, Event("note", {"text": "word " * 100}))
    assert len(out.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    "environ", [{"TERM": "dumb"}, {"TERM": "unknown"}, {**TERMINAL, "NO_COLOR": "1"}]
)
def test_a_terminal_that_asks_for_plain_lines_gets_them(environ: dict[str, str]) -> None:
    assert is_plain(Terminal(), environ)
    out = Terminal()
    with Live(out, environ=environ) as live:
        live(Event("epoch", EPOCH))
    assert "\x1b" not in out.text


def test_a_narrow_terminal_gets_lines_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    run(out, Event("epoch", EPOCH))
    lines = out.text.splitlines()
    assert "\x1b" not in out.text
    assert max(map(len, lines)) < 40
    assert " ".join(" ".join(lines).split()) == (
        "epoch 1/2 loss 0.5 validation: clean 50.0%, pgd-10 eps 0.3 25.0% 10 images/s"
    )


def test_a_terminal_that_is_not_unicode_gets_plain_lines_and_no_error() -> None:
    out = Terminal("ascii")
    run(out, Event("note", {"text": "café \ud800"}), Event("step", STEP))
    assert out.text.splitlines()[0] == "caf\\xe9"


def test_a_terminal_sees_a_moving_part_and_lasting_lines() -> None:
    out = Terminal()
    done = {"attack": "cw", "done": 4, "n": 4, "held": 3, "seconds": 1.0}
    run(
        out,
        Event("step", STEP, 0.0),
        Event("epoch", EPOCH, 1.0),
        Event("step", {**STEP, "epoch": 2, "eta_s": 90}, 2.0),
        Event("end", {"epochs": 2}, 3.0),
        Event("attack", {"attack": "cw", "done": 2, "n": 4, "held": 1}, 4.0),
        Event("attack", done, 5.0),
    )
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.text)
    assert "epoch 2/2  step 3/8" in text
    assert "1 min 30 s left" in text
    assert text.count("validation: clean 50.0%, pgd-10 eps 0.3 25.0%") >= 2
    assert "trained 2 epochs" in text
    assert "1 of 4 hold so far" in text
    assert "cw: 3 held of 4 attacked images, 1.0 s" in text
    assert out.text.count("\x1b[?25l") == out.text.count("\x1b[?25h") == 1  # the cursor is back


def test_the_moving_part_is_drawn_at_most_ten_times_a_second() -> None:
    out = Terminal()
    run(out, *(Event("step", {**STEP, "step": i}, i / 1000) for i in range(1000)))
    assert out.text.count("images/s") <= 12  # one more when the display closes


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_events_without_values_are_shown_without_error(stream: type[TextIO]) -> None:
    kinds = ("start", "step", "epoch", "checkpoint", "note", "attack", "end", "unheard of")
    run(stream(), *(Event(kind, {}, float(i)) for i, kind in enumerate(kinds)))


def test_an_exception_passes_through_and_the_cursor_comes_back() -> None:
    out = Terminal()

    def fail() -> None:
        with Live(out) as live:
            live(Event("step", STEP))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert out.text.count("\x1b[?25h") == 1


def test_what_is_written_to_standard_error_meanwhile_stands_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with Live() as live, warnings.catch_warnings():
        live(Event("step", STEP, 0.0))
        print("a warning", file=sys.stderr)
    assert sys.stderr is out
    assert "a warning" in out.text


@pytest.mark.parametrize("base", [io.StringIO, Terminal])
def test_a_terminal_that_is_closed_ends_no_run(base: type[TextIO]) -> None:
    """The first event that cannot be shown is the last that is tried."""

    class Closing(base):  # type: ignore[valid-type, misc]
        is_closed = False

        def write(self, text: str) -> int:
            if self.is_closed:
                raise OSError(errno.EIO, "Input/output error")
            return int(super().write(text))

    stream, displays = Closing(), []
    with Live(stream, environ=TERMINAL) as live:
        for at in range(3):
            live(Event("epoch", EPOCH, float(at)))
            displays.append(type(live._display).__name__)
            stream.is_closed = True
    assert displays == ["Plain" if base is io.StringIO else "Moving", "Silent", "Silent"]
