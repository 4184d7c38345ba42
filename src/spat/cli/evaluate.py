"""Evaluate a model under attack: a run folder, a weights file or your own code.

spat evaluate runs/first --attacks pgd-40 cw-40 --n 1000
spat evaluate weights.pt --model resnet18 --data cifar10 --attacks fgsm pgd-20
spat evaluate package.module:factory --weights weights.pt --data cifar10 --eps 8/255
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from spat.cli._flags import parser, settings_from


def run(arguments: Sequence[str]) -> int:
    command = parser("evaluate", __doc__ or "")
    command.add_argument("target", help="run folder, weights file or package.module:factory")
    command.add_argument("--weights", default="best", help="best, last, or a file [best]")
    command.add_argument("--out", type=Path, help="a new folder for outcomes, record and report")
    options, flags = command.parse_known_args(arguments)

    from spat.experiment import assess
    from spat.loading import load_target
    from spat.reporting.live import Live
    from spat.reporting.table import print_table
    from spat.training.folder import make_folder

    plan, model = load_target(options.target, settings_from(flags), weights=options.weights)
    if options.out is not None:
        make_folder(options.out)
    with tempfile.TemporaryDirectory() as nowhere, Live() as live:
        finished = assess(plan, model, options.out or Path(nowhere), live)
    assert finished.outcomes is not None
    print_table(finished.outcomes)
    if options.out is not None:
        print(f"report: {options.out / 'report.html'}")
    return 0
