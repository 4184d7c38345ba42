"""How many images an update has where memory is to say: `--batch-size auto`.

On a CPU larger batches are no faster: the usual one, unless memory is short. A GPU tries updates of
twice as many images each time, until one does not fit, within reason: an epoch keeps enough updates
to learn from. The learning rate stays what it was given as, and a note says what that means.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from spat.config import Training
from spat.datasets import Images
from spat.defences._base import Defence
from spat.errors import UserError
from spat.training.trial import Trial

USUAL, MOST = 128, 512  # the field's batch; beyond 512 the field's rates and epochs train less well
UPDATES = 50  # of an epoch, at least, where a batch is larger than the usual
SHARE = 0.8  # of the free memory; the rest is for what comes and goes
GIB = 2**30


def sized(
    settings: Training, model: nn.Module, defence: Defence, train: Images, device: torch.device
) -> tuple[Training, str]:
    """The settings with a number for `batch_size: auto`, and a note of what was chosen and why."""
    free = free_memory(device)
    trial = Trial(model, defence, settings, train.shape, device)
    choose = _tried if device.type == "cuda" else _predicted
    size, why = choose(trial, len(train), free)
    if size > len(train):
        size, why = len(train), "all training images there are"
    return replace(settings, batch_size=size), _note(size, why, settings.lr)


def free_memory(device: torch.device) -> int:
    """Bytes that tensors could still take: of the GPU, or of this machine."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    found = Path("/proc/meminfo")
    if found.exists():
        lines = dict(line.split(":", 1) for line in found.read_text().splitlines())
        if "MemAvailable" in lines:
            return min(int(lines["MemAvailable"].split()[0]) * 1024, _group_limit())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group_limit(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container leaves to its processes."""
    try:
        limit, now = (
            (folder / f"memory.{name}").read_text().strip() for name in ("max", "current")
        )
        return 2**62 if limit == "max" else int(limit) - int(now)
    except (OSError, ValueError):
        return 2**62


def _predicted(trial: Trial, images: int, free: int) -> tuple[int, str]:
    memory, size = trial.memory(), USUAL
    while size > 1 and memory.of(size) > SHARE * free:
        size //= 2
    if memory.of(size) > SHARE * free:
        raise _too_little(memory.of(size), free)
    if size == USUAL:
        return size, "the usual number: on a CPU more at once are no faster"
    return size, f"a step takes about {memory.of(size) / GIB:.2g} of {free / GIB:.2g} GiB"


def _tried(trial: Trial, images: int, free: int) -> tuple[int, str]:
    limit = max(USUAL, min(MOST, images // UPDATES))
    size, taken = 0, _taken(trial, 1, free)
    if taken is None:
        raise _too_little(None, free)
    held, tried = taken, 1
    while tried <= limit and (taken := _taken(trial, tried, free)) is not None:
        size, held, tried = tried, taken, 2 * tried
    why = f"a step takes {held / GIB:.2g} of {free / GIB:.2g} GiB"
    return size, why if 2 * size <= limit else f"{why}, and more would leave few updates an epoch"


def _taken(trial: Trial, images: int, free: int) -> int | None:
    """Bytes of a real step, or None where it does not fit."""
    try:
        taken = trial.peak(images)
    except torch.OutOfMemoryError:
        taken = None  # its traceback, which holds tensors, is gone before memory is looked for
    if taken is None:
        torch.cuda.empty_cache()
    return taken if taken is not None and taken <= SHARE * free else None


def _too_little(needed: float | None, free: int) -> UserError:
    told = "does not fit" if needed is None else f"takes about {needed / GIB:.2g} GiB"
    return UserError(
        f"an update of one image {told}, and {free / GIB:.2g} GiB are free: take a smaller model, "
        "or free some memory."
    )


def _note(size: int, why: str, lr: float) -> str:
    text = f"batch_size auto is {size}: {why}. lr stays {lr:g}"
    if size == USUAL:
        return text + "."
    return (
        f"{text}, which with another batch than the usual {USUAL} is another recipe; in proportion "
        f"it would be {lr * size / USUAL:.3g}."
    )
