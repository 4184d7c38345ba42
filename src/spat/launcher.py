"""What a launcher such as torchrun tells each of the processes that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping


def is_shared(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started as one of several."""
    return size(environ) > 1 and "RANK" in environ


def size(environ: Mapping[str, str] = os.environ) -> int:
    return int(environ.get("WORLD_SIZE", "1"))


def rank(environ: Mapping[str, str] = os.environ) -> int:
    return int(environ.get("RANK", "0"))


def local_rank(environ: Mapping[str, str] = os.environ) -> int:
    """The number of this process among those on its machine."""
    return int(environ.get("LOCAL_RANK", "0"))
