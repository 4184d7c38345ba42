"""Public checkpoints: from the names they hold to the names our architectures have."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

WRAPPERS = ("module.", "model.")  # left by DataParallel and by classes that normalise images
UNUSED = "sub_block1."  # in every WRN checkpoint of TRADES, MART and MAIL; gets no gradient


def adapt_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state-dict without the prefixes of wrappers and without parameters nobody uses."""
    bare = {_unwrapped(name): value for name, value in state.items()}
    return {name: value for name, value in bare.items() if not name.startswith(UNUSED)}


def _unwrapped(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name
