"""Worker threads keep the memory that a step gave back, unless someone decided otherwise."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource
import torch
from spat.fast import Split, crew

def step(k):
    for _ in range(20):
        torch.ones(1 << 18).sum()  # a megabyte, given back at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

with crew(Split(1, workers=2)) as together:
    first, *_, last = (max(together(step, [0, 1])) for _ in range(10))
print(last - first)
"""
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")


def faults(**variables: str) -> int:
    """Pages that nine steps bring in, of the 46,000 that they touch."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env=variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_pages_are_brought_in_once() -> None:
    assert faults() < 5000


def test_who_sets_glibcs_variables_decides() -> None:
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") > 10_000
