"""Say what this machine offers, and what a training run would need of it.

  spat doctor
  spat doctor --model resnet18 --data cifar10 --defence spat --batch-size 64

With settings, as of `spat train`: which copy of the model is attacked and why, precision, and the
memory of a step and the time of an epoch, predicted from a few steps on made-up images.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spat import config
from spat.cli._flags import parser, settings_from


def run(arguments: Sequence[str]) -> int:
    _, flags = parser("doctor", __doc__ or "").parse_known_args(arguments)
    flat = settings_from(flags)
    for name, value in _forecast(flat) if flat else report().items():
        print(f"{name:12} {value}", flush=True)
    return 0


def _forecast(flat: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from spat.forecast import forecast, with_batch_size
    from spat.resolve import resolve

    plan = with_batch_size(resolve(config.experiment(flat)))
    yield from (("note", text) for text in plan.notes)
    yield from forecast(plan)


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
