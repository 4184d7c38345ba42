"""A live display of a run, or plain lines where nobody could see it move.

with Live() as live:
    for event in run:
        live(event)
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console, RenderableType
from rich.live import Live as RichLive
from rich.text import Text

from spat.records import Event
from spat.reporting import panel
from spat.reporting.lines import Narrator
from spat.reporting.wording import is_unicode, showable

LINE_SECONDS = 10.0  # without a terminal, at most so often a line besides the lasting ones
FRAME_SECONDS = 0.1
NARROW = 60  # columns below which the moving part would wrap


class Live:
    """Takes events and shows them; `stream` is standard error unless given.

    On a terminal, lasting lines (one an epoch) scroll above a moving part. It degrades to plain
    lines when the stream is no terminal, cannot move the cursor, is narrow or is not Unicode,
    and when NO_COLOR is set.
    """

    def __init__(
        self, stream: TextIO | None = None, *, environ: Mapping[str, str] | None = None
    ) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.environ = os.environ if environ is None else environ

    def __enter__(self) -> Self:
        self._display = self._opened(is_plain(self.stream, self.environ))
        return self

    def _opened(self, plain: bool) -> Display:
        return Plain(self.stream) if plain else Moving(self.stream)

    def __call__(self, event: Event) -> None:
        try:
            self._display.show(event)
        except OSError:  # the terminal was closed, or the reader of the pipe is gone
            self.close()
            self._display = Silent()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._display.close()


def is_plain(stream: TextIO, environ: Mapping[str, str]) -> bool:
    if not stream.isatty() or not is_unicode(stream):
        return True
    if environ.get("TERM", "").lower() in ("dumb", "unknown") or environ.get("NO_COLOR"):
        return True
    return _width(stream) < NARROW


class Display(Protocol):
    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Silent:
    """For nobody: a run does not end because its display does."""

    def show(self, event: Event) -> None:
        """Nobody can see it."""

    def close(self) -> None:
        """Nothing is open."""


class Plain:
    """Lasting lines at once, the others at most one in ten seconds of the events' own clock."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.narrator = Narrator()
        self.width = _width(stream) if stream.isatty() else 0
        self.last = -float("inf")

    def show(self, event: Event) -> None:
        line = self.narrator(event)
        if line is None or not (line.lasting or event.time - self.last >= LINE_SECONDS):
            return
        self.last = event.time
        self.stream.write(showable(self._folded(line.text), self.stream) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing to tidy: every line was written out."""

    def _folded(self, text: str) -> str:
        """Broken between words on a terminal; in a file a line stays a line."""
        fits = self.width < 20 or len(text) < self.width
        return text if fits else textwrap.fill(text, self.width - 1, subsequent_indent="  ")


class Moving:
    """Drawn only when an event arrives: no thread competes with the training."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, emoji=False, soft_wrap=False)
        self.narrator = Narrator()
        self.epoch: Mapping[str, Any] = {}
        self.drawn = -float("inf")
        self.live = drawn_below(self.console, stream)

    def show(self, event: Event) -> None:
        line = self.narrator(event)
        if event.kind == "epoch":
            self.epoch = event.values
        if line is not None and line.lasting:
            self.console.print(Text(line.text))
            if event.kind in ("attack", "end"):
                self.live.update("", refresh=True)
        elif line is not None and event.time - self.drawn >= FRAME_SECONDS:
            self.drawn = event.time
            self.live.update(self._moving(event), refresh=True)

    def close(self) -> None:
        self.live.stop()

    def _moving(self, event: Event) -> RenderableType:
        if event.kind == "attack":
            return panel.attack(event.values)
        if event.kind == "doubt":
            return panel.doubt(event.values)
        return panel.training(event.values, self.epoch)


def drawn_below(console: Console, stream: TextIO) -> RichLive:
    """A part of the screen that is drawn only when it is told to, below what is printed."""
    live = RichLive(
        console=console,
        auto_refresh=False,
        transient=True,
        # Output that goes elsewhere must not be drawn into this stream.
        redirect_stdout=stream is sys.stdout,
        redirect_stderr=True,
    )
    live.start()
    return live


def _width(stream: TextIO) -> int:
    """The terminal's columns as rich sees them, which heeds COLUMNS."""
    return Console(file=stream).width
