"""When a run saves, what it leaves in its folder, and how it takes that up again.

A save that fails ends nothing: the checkpoint before it is whole, the run says so and tries again.
Only the last save of a run has to succeed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spat import tensorfile
from spat.errors import UserError
from spat.interval import Interval
from spat.records import Event
from spat.training import checkpoint
from spat.training.state import State


@dataclass
class Saver:
    """The run folder as the loop sees it."""

    folder: Path
    every: Interval
    describe: Mapping[str, Any]
    tried_at: float = field(default_factory=time.monotonic)
    tried_step: int = 0

    def is_due(self, step: int) -> bool:
        waited, steps = time.monotonic() - self.tried_at, step - self.tried_step
        return steps > 0 and self.every.is_over(seconds=waited, steps=steps)

    def save(self, state: State) -> Event:
        """Weights for others first; the checkpoint, which marks the state as whole, last."""
        counters = state.counters
        self.tried_at, self.tried_step = time.monotonic(), counters.step
        if not state.is_finite():  # the loss of the next step would tell
            raise UserError(
                f"step {counters.step} made weights that are no numbers: they were not saved."
            )
        facts = {**self.describe, "step": counters.step, "best_epoch": counters.best_epoch}
        tensorfile.write(self.folder / "last.safetensors", state.judged(), facts)
        if state.best:
            tensorfile.write(self.folder / "best.safetensors", state.best, facts)
        meta = {**facts, "counters": counters.to_json()}
        path = checkpoint.save_checkpoint(self.folder, counters.step, state.tensors(), meta)
        return Event("checkpoint", {"path": str(path), "step": counters.step})

    def try_to_save(self, state: State) -> Event:
        """For a save that another will follow."""
        try:
            return self.save(state)
        except UserError as error:
            text = f"{error} The run goes on, and tries again at its next save."
            return Event("note", {"text": text})

    def found(self) -> checkpoint.Newest | None:
        """The newest whole checkpoint, unless none was ever finished."""
        return checkpoint.newest(self.folder) if checkpoint.paths(self.folder) else None

    def last_good(self) -> str:
        """For the error that ends a run."""
        if not checkpoint.paths(self.folder):
            return "there is none yet"
        return f"it is {checkpoint.newest(self.folder).path}"


def take_up(state: State, found: checkpoint.Newest | None) -> Iterator[str]:
    """Go on from a checkpoint; tells what was not as it should be."""
    if found is None:
        yield "no checkpoint was finished before this run stopped: it begins again"
        return
    state.restore(found.tensors, found.meta)
    for problem in found.problems:
        yield f"{problem} It goes on from {found.path} instead."
