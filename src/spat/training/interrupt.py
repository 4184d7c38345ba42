"""Ctrl-C, SIGTERM and a closed terminal end a run after the step they arrive in, with a checkpoint.

A signal that the process was started to ignore (`nohup`, a shell's `&`) stays ignored. One of
several processes may hear of the same wish twice: from its launcher and by itself.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not there on every system
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


class Stop:
    """Which signal asked to stop, if any; a second Ctrl-C does not wait for the step.

    echo: seconds after a signal in which another one means the same wish
    """

    def __init__(self, echo: float = 0.0) -> None:
        self.signal: int | None = None
        self.echo, self.heard = echo, 0.0

    def __bool__(self) -> bool:
        return self.signal is not None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self.heard = number, now
        elif now - self.heard >= self.echo:
            raise KeyboardInterrupt


@contextmanager
def interruptible(echo: float = 0.0) -> Iterator[Stop]:
    """Turn the signals into a flag; outside of the main thread, where none arrive, do nothing."""
    stop = Stop(echo)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
