"""From outcomes to numbers with intervals, and where those numbers come from."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from spat.errors import UserError
from spat.records import Measured, Outcomes, Scalar
from spat.statistics import wilson

UNKNOWN = "unknown"
PACKAGE = Path(__file__).resolve().parent.parent
CPU_INFO = Path("/proc/cpuinfo")


def measured(outcomes: Outcomes) -> tuple[Measured, ...]:
    """Clean, each attack (and stage) and the pointwise worst case, each with its 95% interval.

    Without an attack there is no worst case: it would pass clean accuracy off as robustness.
    """
    if len(outcomes) == 0:
        raise UserError("there is nothing to measure: the outcomes hold no examples.")
    return tuple(_measure(outcomes, name) for name in outcomes.names)


def _measure(outcomes: Outcomes, name: str) -> Measured:
    n, k = len(outcomes), int(outcomes.held(name).sum())
    low, high = wilson(k, n)
    return Measured(name, k / n, low, high, n)


def provenance(gpu: str = "none") -> dict[str, Any]:
    """The commit, version and hardware of a Record, under the names that a Record has for them.

    gpu: the one that computed, for nothing here imports torch
    """
    return {"commit": commit(), "version": version(), "hardware": {**hardware(), "gpu": gpu}}


def commit(package: Path = PACKAGE) -> str:
    """The commit of this code, `-dirty` if it was changed since, or unknown outside a checkout.

    A copy installed into an environment may lie inside someone else's repository: only a
    repository that tracks the package itself is asked.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return UNKNOWN
    found = _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return found or UNKNOWN


def version() -> str:
    try:
        return metadata.version("spat")
    except metadata.PackageNotFoundError:
        return UNKNOWN


def hardware() -> dict[str, Scalar]:
    """What a measured time depends on, as far as it can be told without torch."""
    return {
        "processor": processor(),
        "cores": _cores(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def processor(info: Path = CPU_INFO) -> str:
    """The processor's model name; not every system and architecture tells one."""
    try:
        lines = info.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, [*named, platform.processor(), platform.machine()]), UNKNOWN)


def _cores() -> int:
    """The cores this process may use, which a container or a scheduler can make fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says in a folder, or None; a hook's GIT_DIR must not point it elsewhere."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, env=clean, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
