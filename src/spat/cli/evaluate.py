"""Evaluate a model under attack: a run folder, a weights file or your own code.

spat evaluate runs/first --attacks pgd-40 cw-40 --n 1000
spat evaluate weights.pt --model resnet18 --data cifar10 --attacks fgsm pgd-20
spat evaluate package.module:factory --weights weights.pt --data cifar10 --eps 8/255
spat evaluate runs/first --card card.json --save-adversarial adversarial.safetensors
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spat.cli._flags import parser, settings_from
from spat.errors import UserError

if TYPE_CHECKING:
    from spat.cards import Evidence


def run(arguments: Sequence[str]) -> int:
    command = parser("evaluate", __doc__ or "")
    command.add_argument("target", help="run folder, weights file or package.module:factory")
    command.add_argument("--weights", default="best", help="best, last, or a file [best]")
    command.add_argument("--out", type=Path, help="a new folder for outcomes, record and report")
    command.add_argument("--card", type=Path, help="a new JSON file: the evaluation card")
    command.add_argument(
        "--save-adversarial", type=Path, metavar="FILE", help="a new file of adversarial images"
    )
    command.add_argument(
        "--save-each", action="store_true", help="keep every attack's images, not the worst only"
    )
    options, flags = command.parse_known_args(arguments)
    evidence = _evidence(options)

    from spat.experiment import assess
    from spat.loading import load_target
    from spat.reporting.live import Live
    from spat.reporting.table import print_table
    from spat.training.folder import make_folder

    plan, model = load_target(options.target, settings_from(flags), weights=options.weights)
    if options.out is not None:
        make_folder(options.out)
    with tempfile.TemporaryDirectory() as nowhere, Live() as live, evidence:
        finished = assess(plan, model, options.out or Path(nowhere), live, evidence=evidence)
    assert finished.outcomes is not None
    print_table(finished.outcomes)
    if options.out is not None:
        print(f"report: {options.out / 'report.html'}")
    if options.card is not None:
        print(f"card: {options.card}; check it with: spat verify {options.card}")
    return 0


def _evidence(options: Namespace) -> Evidence:
    """What is to be left for others to check; nothing that is there is written over."""
    from spat.cards import Evidence
    from spat.loading import weights_file

    card, images, each = options.card, options.save_adversarial, options.save_each
    for path, flag in ((card, "--card"), (images, "--save-adversarial")):
        if path is not None and path.exists():
            raise UserError(f"{path} already exists; choose another {flag}.")
    if each and images is None:
        raise UserError("--save-each says what --save-adversarial FILE keeps; give both.")
    weights = weights_file(options.target, options.weights)
    return Evidence(card=card, images=images, each=each, weights=weights)
