"""Evaluate in processes that are killed at random moments, until the outcomes are there.

    python killing_evaluations.py SEED KILLS evaluate TARGET --flags ...

makes `whole`, which nothing disturbs, and `killed`. The processes are forked from this one, which
has imported all that an evaluation needs. All kills but the last come at any time from the start of
a process on; the last comes while Square queries the model.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

from killing import TICK, TooLateError, forked, is_over, log, persistently
from safetensors import safe_open

SQUARE = 3  # the last stage of AutoAttack, counted from 0
LONGEST = 0.7  # seconds until a kill


def kill(pid: int, folder: Path, delay: float, *, in_square: bool) -> None:
    while in_square and not is_over(pid) and stage(folder) < SQUARE:
        time.sleep(TICK)
    time.sleep(delay)
    os.kill(pid, 9)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        raise TooLateError
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"it failed: {log(folder).read_text()}")


def stage(folder: Path) -> int:
    """Of AutoAttack, in the newest state."""
    newest = sorted((folder / "state").glob("*attack-001*.safetensors"))[-1:]
    try:
        with safe_open(newest[0], framework="pt") as file:
            return int(json.loads(file.metadata()["spat"])["where"]["stage"])
    except (IndexError, OSError):  # there is none yet, or it has just given way to the next
        return -1


def command(folder: Path, arguments: list[str]) -> list[str]:
    begun = (folder / "evaluation.json").exists()
    return ["evaluate", "--resume", str(folder)] if begun else [*arguments, "--out", str(folder)]


def run(folder: Path, seed: int, kills: int, arguments: list[str]) -> int:
    rng = random.Random(seed)
    out = os.open(log(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    images = ["--save-adversarial", f"{folder}.safetensors"]
    for k in range(kills):
        is_last = k == kills - 1
        pid = forked(command(folder, [*arguments, *images]), out)
        delay = rng.uniform(0, 0.2 if is_last else LONGEST)
        kill(pid, folder, delay, in_square=is_last)
    _, status = os.waitpid(forked(command(folder, [*arguments, *images]), out), 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    import torch.fx.experimental.proxy_tensor  # noqa: F401  most of what a start takes

    import spat.assessment
    import spat.loading  # noqa: F401

    number, count, *words = sys.argv[1:]
    whole = run(Path("whole"), 0, 0, words)
    killed = Path("killed")
    sys.exit(
        whole
        or persistently(lambda seed: run(killed, seed, int(count), words), int(number), killed)
    )
