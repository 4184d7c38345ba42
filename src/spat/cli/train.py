"""Train a model with a defence, evaluate it, and write weights, record and report.

  spat train --data mnist-mini --model small-cnn --defence spat --epochs 8 --out runs/first
  spat train --config experiment.toml --seed 1 --out runs/second
  spat train --recipe cifar10-common --defence trades --out runs/third
  spat train --resume runs/first
  torchrun --nproc-per-node 2 -m spat train --data mnist-mini --out runs/fourth

Ctrl-C, SIGTERM and SIGHUP finish the step, leave a checkpoint and exit with 130, 143 or 129.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spat import config
from spat.cli._flags import parser, settings_from, settings_help, show
from spat.cli._running import run_shown
from spat.errors import UserError
from spat.world import World, joined


def run(arguments: Sequence[str]) -> int:
    with joined() as world:
        return _train(arguments, world)


def _train(arguments: Sequence[str], world: World) -> int:
    command = parser("train", __doc__ or "", add_help=False)
    command.add_argument("-h", "--help", action="store_true", help="show this, and every setting")
    command.add_argument("--config", type=Path, help="a TOML file of settings; flags go on top")
    command.add_argument("--recipe", help="settings by name, see `spat list recipe`; flags on top")
    command.add_argument("--out", type=Path, help="a new folder for everything the run leaves")
    command.add_argument("--resume", type=Path, metavar="RUN", help="go on with a stopped run")
    command.add_argument("--dry-run", action="store_true", help="print every resolved setting")
    command.add_argument("--tensorboard", action="store_true", help="write TensorBoard events too")
    options, flags = command.parse_known_args(arguments)
    given = config.read(options.config) if options.config else {}
    given = config.overlaid(given, settings_from(flags))
    flat = (
        config.overlaid(config.from_recipe(options.recipe, given), given)
        if options.recipe
        else given
    )
    if options.help:
        if world.first:
            print(command.format_help() + "\n" + settings_help(flat))
        return 0
    if options.resume:
        return _resume(options.resume, flat, options.tensorboard, world)
    if options.dry_run:
        return _dry_run(flat) if world.first else 0
    if options.out is None:
        raise UserError("say where the run goes: --out runs/NAME.")
    planned = config.experiment(flat)
    return run_shown(planned, options.out, tensorboard=options.tensorboard, world=world)


def _resume(folder: Path, flat: dict[str, object], tensorboard: bool, world: World) -> int:
    from spat.experiment import load_run

    if flat:
        raise UserError(
            f"a resumed run keeps its settings; leave out --{next(iter(flat)).replace('_', '-')}."
        )
    given = world.by_first(lambda: load_run(folder))
    return run_shown(given, folder, resume=True, tensorboard=tensorboard, world=world)


def _dry_run(flat: dict[str, object]) -> int:
    from spat.forecast import with_batch_size
    from spat.resolve import resolve

    plan = with_batch_size(resolve(config.experiment(flat)))
    for name in sorted(plan.flat):
        print(f"{name} = {show(plan.flat[name])}")
    for note in plan.notes:
        print(f"# {note}")
    print(f"# hash {config.digest(plan.flat)}")
    return 0
