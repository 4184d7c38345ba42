"""What the machine can do at most, and what it does on each layer of a model.

A layer that does few operations for each byte it moves is bound by memory, however fast its
arithmetic: its roof is the lower of the machine's speed and of its intensity times the bandwidth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ceiling import convolutions, times, work
from race import Race

SIDE, LENGTH = 2048, 2**25  # of square matrices; of vectors, far larger than any cache
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def machine(race: Race) -> dict[str, float]:
    """GFLOP/s of matrix products, GB/s of a = b + s c."""
    runs: dict[str, Any] = {}
    for name, dtype in TYPES.items():
        a = torch.rand(SIDE, SIDE).to(dtype)
        runs[name] = lambda a=a: a @ a
    b, c, out = (torch.rand(LENGTH) for _ in range(3))
    runs["triad"] = lambda: torch.add(b, c, alpha=0.5, out=out)
    best = race(runs)
    found = {name: 2 * SIDE**3 / best[name] / 1e9 for name in TYPES}
    return {**found, "triad": 3 * 4 * LENGTH / best["triad"] / 1e9}


def layers(model: nn.Module, x: torch.Tensor, race: Race) -> list[dict[str, Any]]:
    """Each kind of convolution of a model: its intensity and its speed, forward and back."""
    rows: dict[str, dict[str, Any]] = {}
    for conv, shape, sides in convolutions(model, x):
        k, s = conv.kernel_size, conv.stride[0]
        name = f"{shape[1]} to {conv.out_channels}, {k[0]}x{k[1]}, {shape[2]} to {sides[0]} pixels"
        name += f", stride {s}" if s > 1 else ""
        if name in rows:
            rows[name]["times"] += 1
            continue
        moved = shape.numel() + shape[0] * conv.out_channels * sides[0] * sides[1]
        row: dict[str, Any] = {"layer": name, "times": 1}
        for kind, dtype in TYPES.items():
            bytes_moved = (moved + conv.weight.numel()) * torch.finfo(dtype).bits / 8
            row[f"{kind} intensity"] = work(conv, shape, sides) / bytes_moved
            speeds = [
                work(conv, shape, sides) / t / 1e9 for t in times(conv, shape, sides, dtype, race)
            ]
            row[f"{kind} forward"], row[f"{kind} back"] = speeds
        rows[name] = row
    return list(rows.values())
