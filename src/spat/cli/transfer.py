"""Craft adversarial images on some models and try them on others: the black-box matrix.

spat transfer --source runs/lenet --target runs/spat runs/trades --attacks fgsm pgd-20
spat transfer --source mine.py:build@mine.pt --target runs/spat --n 1000 --out matrix.csv

A model is a run folder, a weights file or package.module:factory; @FILE after it names its weights
(@last those of a run's last epoch). Data and budget are those of the runs, unless a flag says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spat.cli._flags import parser, settings_from
from spat.errors import UserError

if TYPE_CHECKING:
    from spat.records import Transferred

SUFFIXES = (".json", ".csv")


def run(arguments: Sequence[str]) -> int:
    command = parser("transfer", __doc__ or "")
    command.add_argument("--source", nargs="+", required=True, help="models to craft images on")
    command.add_argument("--target", nargs="+", required=True, help="models to try them on")
    command.add_argument("--out", type=Path, help="a new file: .json with a row an image, or .csv")
    command.add_argument("--exact", action="store_true", help="attack no fast copies of sources")
    options, flags = command.parse_known_args(arguments)
    _check_out(options.out)
    settings = settings_from(flags)
    settings.setdefault("attacks", "pgd-20")

    from spat.evaluation import transfer
    from spat.loading import load_together
    from spat.reporting.live import Live
    from spat.reporting.matrix import print_matrix

    plan, models = load_together([*options.target, *options.source], settings)
    given = plan.experiment
    x, y = plan.splits.test[: given.n].floats()
    with Live() as live:
        found = transfer(
            {name: models[name] for name in options.source},
            {name: models[name] for name in options.target},
            x,
            y,
            given.attacks,
            eps=plan.eps,
            norm=given.norm,
            seed=given.seed,
            exact=options.exact,
            sink=live,
        )
    print_matrix(found)
    if options.out is not None:
        _write(options.out, found)
        print(f"written to {options.out}")
    return 0


def _check_out(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise UserError(f"--out of a transfer ends in .json or .csv, got {path}.")
    if path.exists():
        raise UserError(f"{path} already exists; choose another --out.")


def _write(path: Path, found: Transferred) -> None:
    from dataclasses import asdict

    from spat.results import write_json, write_text
    from spat.results.transferred import as_csv, cells

    rows = cells(found)
    if path.suffix == ".csv":
        write_text(path, as_csv(rows))
    else:
        write_json(path, {"matrix": [asdict(row) for row in rows], **found.to_json()})
