"""How much memory tensors take while something runs: what is live at any moment, and its peak."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak(work: Callable[[], object], device: torch.device) -> int:
    """Bytes that tensors made by the work take when they take most, beside those there were."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        most: int = torch.cuda.max_memory_allocated(device)
        return most - before
    with Live() as live:
        work()
    counted: int = live.most
    return counted


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes that these tensors take; those that share memory count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


class Live(TorchDispatchMode):
    """Watches every operation of this thread, those of a backward pass on a CPU among them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.seen = set[int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [holder for holder, _ in _memory((args, kwargs))]
        out = func(*args, **(kwargs or {}))
        for holder, count in _memory(out):
            if id(holder) not in self.seen and not any(holder is one for one in given):
                self.seen.add(id(holder))
                self.now += count
                weakref.finalize(holder, self._gone, id(holder), count).atexit = False
        self.most = max(self.most, self.now)
        return out

    def _gone(self, holder: int, count: int) -> None:
        self.seen.discard(holder)
        self.now -= count


def _memory(tree: Any) -> Iterator[tuple[Tensor | torch.UntypedStorage, int]]:
    """What holds the memory of the tensors in a tree, and its bytes."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.is_mkldnn:  # packed weights, which have no storage
            yield leaf, leaf.numel() * leaf.element_size()
        elif isinstance(leaf, Tensor):
            storage = leaf.untyped_storage()
            yield storage, len(storage)
