"""Memory that worker threads give back is kept for the next step.

glibc has a heap for each thread. Whatever frees its last block hands it to the system, and the next
step has every page of it brought in anew, which small models pay for at every attack step.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # glibc's numbers of these settings
LARGEST = 32 << 20  # bytes; above, glibc refuses the setting
HEAP = 64 << 20  # bytes of a thread's heap; with so much to spare none is given back
OWN = ("MALLOC_ARENA", "MALLOC_MMAP", "MALLOC_TOP", "MALLOC_TRIM", "GLIBC_TUNABLES", "LD_PRELOAD")


@cache
def keep_freed_memory() -> bool:
    """Once, for the whole process; whether it was done. Whoever sets glibc's variables decides."""
    if any(name.startswith(OWN) for name in os.environ) or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    done = [
        mallopt(MMAP_THRESHOLD, LARGEST),
        mallopt(TRIM_THRESHOLD, 2**31 - 1),
        mallopt(TOP_PAD, HEAP),
    ]
    return all(done)
