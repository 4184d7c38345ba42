"""Named random numbers: every draw comes from a source that is an argument, never the global one.

Two kinds of source. A `torch.Generator` (training, quick use) is drawn from in order. `PerExample`
(evaluation) gives each example a stream of its own, computed from its id by hashing a counter, so
that what an example sees does not depend on its batch or on which of its neighbours are left.
Both draw on the CPU, so that every device starts from the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

Purpose = int | str
GOLDEN = (
    -7046029254386353131
)  # 2^64 / golden ratio as a signed integer: the Weyl step of splitmix64
MIX1, MIX2 = -4658895280553007687, -7723592293110705685  # splitmix64's two multipliers, signed


def derive(*names: Purpose) -> int:
    """A 63-bit seed that is a pure function of its names, such as (seed, epoch, step, "noise")."""
    text = "/".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*names: Purpose) -> torch.Generator:
    """A fresh CPU generator for these names."""
    return torch.Generator().manual_seed(derive(*names))


def _mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64; `>>` is arithmetic on int64, hence the masks."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * MIX1
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * MIX2
    return z ^ ((z >> 31) & ((1 << 33) - 1))


@dataclass(frozen=True)
class PerExample:
    """One stream of random numbers per example: `seed` and `ids` (int64, [n]) decide them all."""

    seed: int
    ids: Tensor

    def __getitem__(self, index: Tensor) -> PerExample:
        return PerExample(self.seed, self.ids[index.cpu()])

    def fork(self, *names: Purpose) -> PerExample:
        """An independent set of streams for another purpose."""
        return PerExample(derive(self.seed, *names), self.ids)

    def uniform(self, count: int) -> Tensor:
        """[n, count] numbers in [0, 1), 24 bits each (all a float32 can hold evenly)."""
        key = _mix(_mix(self.ids + self.seed) + GOLDEN)
        bits = _mix(key[:, None] + GOLDEN * torch.arange(1, count + 1))
        return ((bits >> 40) & ((1 << 24) - 1)).to(torch.float32) / (1 << 24)


Source = torch.Generator | PerExample


def fork(source: Source, *names: Purpose) -> Source:
    """A source for a sub-purpose; a generator simply goes on."""
    return source.fork(*names) if isinstance(source, PerExample) else source


def take(source: Source, index: Tensor) -> Source:
    """The source of some examples of the batch."""
    return source[index] if isinstance(source, PerExample) else source


def uniform(source: Source, like: Tensor) -> Tensor:
    """Numbers in [0, 1) of `like`'s shape, dtype and device."""
    if isinstance(source, PerExample):
        drawn = source.uniform(math.prod(like.shape[1:])).reshape(like.shape)
    else:
        drawn = torch.rand(like.shape, generator=source)
    return drawn.to(like)


def normal(source: Source, like: Tensor) -> Tensor:
    """Standard normal numbers of `like`'s shape, dtype and device (Box-Muller per example)."""
    if not isinstance(source, PerExample):
        return torch.randn(like.shape, generator=source).to(like)
    count = math.prod(like.shape[1:])
    u = source.uniform(2 * count).reshape(len(source.ids), 2, count).double()
    radius = torch.sqrt(-2 * torch.log1p(-u[:, 0]))
    return (radius * torch.cos(2 * math.pi * u[:, 1])).reshape(like.shape).to(like)


@contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Give the global generators back as they were found, also after an exception."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def bookmark(device: torch.device) -> Callable[[], None]:
    """A function that puts the global generators back to where they are now."""
    here = torch.get_rng_state()
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def go_back() -> None:
        torch.set_rng_state(here)
        if there is not None:
            torch.cuda.set_rng_state(there, device)

    return go_back


@contextmanager
def global_seed(device: torch.device, *names: Purpose) -> Iterator[None]:
    """Make layers that draw from the global generator (dropout) a function of these names."""
    with preserved(device):
        seed = derive(*names)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs as well
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
