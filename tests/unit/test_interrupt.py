"""Signals become a flag that the loop reads, and what was there before comes back."""

from __future__ import annotations

import os
import signal

import pytest

from spat.training.interrupt import SIGNALS, interruptible

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_sets_the_flag_and_a_second_one_does_not_wait(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with interruptible() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """As `nohup` asks for; a run in the background must not end with its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
