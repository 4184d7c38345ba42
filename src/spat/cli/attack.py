"""Craft adversarial images of test images and save them with their predictions.

  spat attack runs/first --with pgd-40 --n 16 --out adversarial.npz

The file holds x, x_adv (float32 [n, c, h, w] in [0, 1]), labels and both predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spat.cli._flags import parser, settings_from
from spat.errors import UserError


def run(arguments: Sequence[str]) -> int:
    command = parser("attack", __doc__ or "")
    command.add_argument("target", help="run folder, weights file or package.module:factory")
    command.add_argument("--with", dest="attack", default="pgd-20", help="an attack [pgd-20]")
    command.add_argument("--weights", default="best", help="best, last, or a file [best]")
    command.add_argument("--out", type=Path, required=True, help="the .npz file to write")
    options, flags = command.parse_known_args(arguments)
    if options.out.exists():
        raise UserError(f"{options.out} already exists; choose another --out.")

    from spat.assessment import craft_images
    from spat.loading import load_target
    from spat.results import write_arrays

    plan, model = load_target(options.target, settings_from(flags), weights=options.weights)
    arrays = craft_images(plan, model, options.attack)
    write_arrays(options.out, arrays)
    changed = arrays["adversarial_prediction"] != arrays["labels"]
    print(
        f"{options.attack}, eps {plan.eps:.4g} {plan.experiment.norm}: "
        f"{int(changed.sum())} of {len(changed)} images misclassified; written to {options.out}"
    )
    return 0
