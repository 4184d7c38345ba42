"""Train and evaluate SPAT on embedded images, and write a report page: no network, minutes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from spat.cli._flags import parser
from spat.cli._running import run_shown


def run(arguments: Sequence[str]) -> int:
    command = parser("demo", __doc__ or "")
    command.add_argument("--out", type=Path, default=Path("runs/demo"), help="[runs/demo]")
    command.add_argument("--page", type=Path, default=Path("demo.html"), help="[demo.html]")
    options = command.parse_args(arguments)

    from spat.experiment import next_free
    from spat.recipes.demo import demo

    folder = next_free(options.out)
    code = run_shown(demo(), folder)
    if code == 0:
        shutil.copyfile(folder / "report.html", options.page)
        print(f"open {options.page.resolve()} in a browser")
    return code
