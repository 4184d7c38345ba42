"""Train in processes that are killed at random moments, until the run is whole.

    python killing.py SEED KILLS forked|fresh train --flags ...

makes the runs `whole`, which nothing disturbs, and `killed`. Each process runs the command line
itself. It is forked from this one, which has imported all that a run needs, so that 20 of them take
seconds; a fresh one starts from nothing. The moments lie anywhere: while settings are read, in a
step, in the middle of writing a file.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from spat.cli.main import main

STEPS = 60  # of the run, each of which is saved; kills are spread over all but the last few
MARGIN = 8
TICK = 0.0005
ATTEMPTS = 6


class TooLateError(Exception):
    """The process had finished its work: on a busy machine, a killer can be late."""


def persistently(once: Callable[[int], int], seed: int, folder: Path) -> int:
    """A run whose kills all land: when one comes too late, it begins anew, with other moments."""
    for attempt in range(ATTEMPTS):
        try:
            return once(seed + 1000 * attempt)
        except TooLateError:
            shutil.rmtree(folder)
            folder.with_suffix(".safetensors").unlink(missing_ok=True)
    raise SystemExit(f"it ended by itself, {ATTEMPTS} times: {log(folder).read_text()}")


def forked(arguments: list[str], out: int) -> int:
    """A process with this one's memory as it is now, which runs a command line."""
    pid = os.fork()
    if pid == 0:
        os.dup2(out, 1)
        os.dup2(out, 2)
        os._exit(main(arguments))
    return pid


def fresh(arguments: list[str], out: int) -> int:
    words = [sys.executable, "-m", "spat", *arguments]
    return subprocess.Popen(words, stdout=out, stderr=out).pid


def log(folder: Path) -> Path:
    """What the processes say."""
    return folder.with_suffix(".log")


def kill(pid: int, folder: Path, target: int, delay: float) -> None:
    """Kill it so long after a checkpoint of this step, or of a later one, is there."""
    while reached(folder) < target and not is_over(pid):
        time.sleep(TICK)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        if os.waitstatus_to_exitcode(status) == 0:
            raise TooLateError
        raise SystemExit(f"it failed: {log(folder).read_text()}")


def reached(folder: Path) -> int:
    names = folder.glob("checkpoint-*.safetensors") if folder.exists() else ()
    return max((int(path.stem[-9:]) for path in names), default=0)


def is_over(pid: int) -> bool:
    """Without collecting its exit code."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, flags) is not None


def run(folder: Path, seed: int, kills: int, is_fresh: bool, arguments: list[str]) -> int:
    """The exit code of the process that was left to finish."""
    rng, start = random.Random(seed), fresh if is_fresh else forked
    out = os.open(log(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target in sorted(rng.sample(range(STEPS - MARGIN), kills)):
        pid = start(command(folder, arguments), out)
        # Up to about three steps; before the first one, a start-up can be hit anywhere.
        kill(pid, folder, target, rng.uniform(0, 0.3 if target == 0 else 0.06))
    _, status = os.waitpid(start(command(folder, arguments), out), 0)
    return os.waitstatus_to_exitcode(status)


def command(folder: Path, arguments: list[str]) -> list[str]:
    """What a person would do: resume, or start anew where nothing was begun."""
    if (folder / "settings.json").exists():
        return ["train", "--resume", str(folder)]
    return [*arguments, "--out", str(folder)]


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  making an optimiser imports it: most of what a start takes

    import spat.experiment  # noqa: F401

    number, count, anew, *words = sys.argv[1:]
    whole = run(Path("whole"), 0, 0, False, words)
    killed = Path("killed")
    sys.exit(
        whole
        or persistently(
            lambda seed: run(killed, seed, int(count), anew == "fresh", words), int(number), killed
        )
    )
