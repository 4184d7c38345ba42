"""Say what this machine offers: cores, precision, GPUs, data found."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from spat.cli._flags import parser


def run(arguments: Sequence[str]) -> int:
    parser("doctor", __doc__ or "").parse_args(arguments)
    for name, value in report().items():
        print(f"{name:12} {value}")
    return 0


def report() -> dict[str, str]:
    """One line a fact."""
    import torch

    import spat
    from spat.results import hardware

    machine = hardware()
    return {
        "spat": spat.__version__,
        "software": f"python {platform.python_version()}, torch {torch.__version__}",
        "processor": str(machine.get("processor", "unknown")),
        "cores": f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads",
        "gpu": _gpus(),
        "bfloat16": _bfloat16(),
        "memory": _memory(),
        **_data(),
    }


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none that torch sees: training runs on the CPU"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names)


def _bfloat16() -> str:
    """On the device that training runs on by default."""
    from spat.fast import has_fast_bfloat16
    from spat.resolve import find_device

    if has_fast_bfloat16(find_device("auto")):
        return "multiplied in hardware: --precision auto trains and attacks with it"
    return "not in hardware: --precision auto stays with float32"


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, AttributeError, OSError):
        return "unknown"
    return f"{size / 2**30:.1f} GiB"


def _data() -> dict[str, str]:
    """For each data set that can be fetched, whether it is here."""
    from spat.cli.data import fetchable, state

    return {name: state(name) for name in fetchable()}
