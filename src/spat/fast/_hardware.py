"""What the hardware is fast at."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86 vectors, x86 tiles, Arm
AMPERE = (8, 0)  # the first CUDA generation that multiplies bfloat16 in its tensor cores


def has_fast_bfloat16(device: torch.device | str) -> bool:
    """Whether the device multiplies bfloat16 in hardware; emulation is slower than float32."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= AMPERE
    has_kernels = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return device.type == "cpu" and has_kernels and _cpu_has_bfloat16()


def has_wide_vectors() -> bool:
    """Whether the CPU computes on 16 floats at once."""
    return bool(torch.backends.cpu.get_cpu_capability() == "AVX512")


@cache
def _cpu_has_bfloat16() -> bool:
    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        return any(found.get(flag, False) for flag in BFLOAT16_FLAGS)
    return not BFLOAT16_FLAGS.isdisjoint(_kernel_flags())


def _kernel_flags() -> set[str]:
    """What Linux says of the CPU, for versions of torch that do not say it themselves."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    listed = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(listed, "").split())
