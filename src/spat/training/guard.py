"""Watches a run for what ruins it, says so, and takes it back where that was asked for.

A rollback puts weights, momentum and running average back to the end of the last good epoch and
halves the learning rate from there on. Time does not go back: the run ends after as many steps as
it would have, each step's batch and random numbers are what they are in any run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from spat.training.state import State
from spat.training.symptoms import Reading

Mode = Literal["warn", "rollback", "off"]
ROLLBACKS = 3  # of a run: what fails again at an eighth of the rate fails for another reason
FACTOR = 0.5  # of the learning rate, each time


class Guard:
    """One run's guard; all it remembers is in the state."""

    def __init__(self, mode: Mode, state: State) -> None:
        self.mode, self.state = mode, state
        if mode == "rollback":
            self.state.keep()

    @property
    def rate(self) -> float:
        """By what the learning rate is multiplied."""
        return float(FACTOR**self.state.counters.watch.rollbacks)

    def after_epoch(self, epoch: int, now: Reading | None) -> str:
        """A sentence on what is wrong, once, and on what was done about it.

        now: None where nothing tells how robust the model is; every epoch is then a good one
        """
        if self.mode == "off":
            return ""
        watch = self.state.counters.watch
        was_told, trouble, is_good = watch.told, "", True
        if now is not None:
            watch = watch.after(now)
            trouble, is_good = watch.trouble(now), watch.is_good(now)
        self.state.counters.watch = replace(watch, told=bool(trouble))
        if trouble and self._may_go_back():
            return f"{trouble}; {self._go_back()}"
        if is_good:
            self._keep(epoch)
        return f"{trouble}; {self._advice()}" if trouble and not was_told else ""

    def after_nonfinite(self, what: str) -> str:
        """What was done about a step that gave no numbers, or nothing where nothing can be."""
        return f"{what}; {self._go_back()}" if self._may_go_back() else ""

    def _keep(self, epoch: int) -> None:
        if self.mode == "rollback" and self.state.is_finite():
            self.state.counters.watch = replace(self.state.counters.watch, good=epoch)
            self.state.keep()

    def _may_go_back(self) -> bool:
        return self.mode == "rollback" and self.state.counters.watch.rollbacks < ROLLBACKS

    def _go_back(self) -> str:
        watch = self.state.counters.watch
        self.state.go_back()
        watch = replace(watch, rollbacks=watch.rollbacks + 1, falling=0, told=False)
        self.state.counters.watch = watch
        to = f"epoch {watch.good}" if watch.good else "the start"
        return (
            f"the weights are those of {to} again, at {self.rate:g} of the learning rate "
            f"(rollback {watch.rollbacks} of {ROLLBACKS})."
        )

    def _advice(self) -> str:
        if self.mode == "rollback":
            return f"after {ROLLBACKS} rollbacks the run goes on as it is; the best epoch is kept."
        return "the best epoch is kept; --guard rollback would go back by itself."
