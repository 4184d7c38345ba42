"""Is this robustness real? Look for every known way in which it could be fake.

spat audit runs/first
spat audit weights.pt --model resnet18 --data cifar10 --eps 8/255 --n 256 --json audit.json
spat audit package.module:factory --data cifar10 --source runs/plain

Exit codes: 0 no reason for distrust (there may be amber doubts), 1 at least one red finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spat.cli._flags import parser, settings_from
from spat.errors import UserError

IMAGES = 128


def run(arguments: Sequence[str]) -> int:
    command = parser("audit", __doc__ or "")
    command.add_argument("target", help="run folder, weights file or package.module:factory")
    command.add_argument("--weights", default="best", help="best, last, or a file [best]")
    command.add_argument("--attack", default="pgd-20", help="the attack in question [pgd-20]")
    command.add_argument("--source", help="a model to craft transfer attacks on, named as a target")
    command.add_argument("--doubts", nargs="+", default=[], help="ask only these (spat list doubt)")
    command.add_argument("--json", type=Path, help="a new file for all findings and numbers")
    options, flags = command.parse_known_args(arguments)
    if options.json is not None and options.json.exists():
        raise UserError(f"{options.json} already exists; choose another --json.")

    from spat.doubts import audit
    from spat.loading import load_target
    from spat.reporting.live import Live
    from spat.reporting.verdict import print_audit
    from spat.results import write_json

    settings = settings_from(flags)
    plan, model = load_target(options.target, settings, weights=options.weights)
    source = load_target(options.source, _shared(settings))[1] if options.source else None
    x, y = plan.splits.test[: plan.experiment.n or IMAGES].floats()
    with Live() as live:
        found = audit(
            model,
            x,
            y,
            eps=plan.eps,
            norm=plan.experiment.norm,
            attack=options.attack,
            doubts=options.doubts,
            source=source,
            seed=plan.experiment.seed,
            sink=live,
        )
    if options.json is not None:
        write_json(options.json, found.to_json())
    print_audit(found)
    return 1 if found.level == "red" else 0


def _shared(settings: dict[str, Any]) -> dict[str, Any]:
    """What holds for the source as well: the images and the device, not the model."""
    return {key: value for key, value in settings.items() if key.startswith(("data", "device"))}
