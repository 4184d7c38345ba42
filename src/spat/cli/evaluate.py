"""Evaluate a model under attack: a run folder, a weights file or your own code.

spat evaluate runs/first --attacks clean fgsm pgd-20 pgd-100 mim-20 cw fab aa --n 1000 --out runs/aa
spat evaluate --resume runs/aa
spat evaluate weights.pt --model resnet18 --data cifar10 --attacks fgsm,pgd-20
spat evaluate package.module:factory --weights weights.pt --data cifar10 --eps 8/255
spat evaluate runs/first --attacks aa --within 3pp --budget 20m --out runs/sample
spat evaluate --resume runs/sample --budget 40m
spat evaluate runs/first --card card.json --save-adversarial adversarial.safetensors

With --out, Ctrl-C, SIGTERM and SIGHUP save the state and exit with 130, 143 or 129, and not even a
kill loses more than --save-every. Each setting of the run is a flag too; these are the usual ones:
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spat import config
from spat.cli._flags import Parser, flag_help, parser, settings_from
from spat.cli._request import Request, saved
from spat.cli._running import echo, shown
from spat.errors import UserError
from spat.folder import claimed
from spat.limits import limits
from spat.world import World, joined

if TYPE_CHECKING:
    from torch import nn

    from spat.assessment import Finished
    from spat.cards import Evidence
    from spat.resolve import Plan

OWN = [field.name for field in fields(config.Evaluation)]
FREE = [config.EVALUATION + name for name in ("within", "budget", "save_every")]
USUAL = ("attacks", "n", "eps", "norm", "seed", "data", "model", "device")


def run(arguments: Sequence[str]) -> int:
    with joined() as world:
        return _asked(arguments, world)


def _asked(arguments: Sequence[str], world: World) -> int:
    resumes = any(word.partition("=")[0] == "--resume" for word in arguments)
    options, flags = _parser(resumes).parse_known_args(arguments)
    given = {name: value for name, value in vars(options).items() if value is not None}
    if not resumes:
        return _evaluate(Request(**given, settings=_settings(flags)), world, resume=False)
    folder = given.pop("resume")
    asked = world.by_first(lambda: saved(folder))
    settings = {**asked.settings, **_changes([*map(_flag, given), *flags])}
    if _samples(settings) != _samples(asked.settings):
        raise UserError(
            f"{folder} was begun {'with' if _samples(asked.settings) else 'without'} --within or "
            "--budget, which decides the order of the images; begin anew, with another --out."
        )
    return _evaluate(replace(asked, settings=settings), world, resume=True)


def _parser(resumes: bool) -> Parser:
    known = config.known_settings({})
    shown = [replace(known[config.EVALUATION + name], name=name) for name in OWN]
    shown += [known[name] for name in USUAL]
    command = parser("evaluate", "\n".join([__doc__ or "", *map(flag_help, shown)]))
    if not resumes:
        command.add_argument("target", help="run folder, weights file or package.module:factory")
    command.add_argument("--weights", help="best, last, or a file [best]")
    command.add_argument("--out", type=Path, help="a new folder for outcomes, record and report")
    command.add_argument("--resume", type=Path, metavar="RUN", help="go on in a folder of --out")
    command.add_argument("--card", type=Path, help="a new JSON file: the evaluation card")
    command.add_argument(
        "--save-adversarial", type=Path, metavar="FILE", help="a new file of adversarial images"
    )
    command.add_argument(
        "--save-each",
        action="store_true",
        default=None,
        help="keep every attack's images, not the worst only",
    )
    return command


def _changes(flags: Sequence[str]) -> dict[str, Any]:
    """What may be given anew to an evaluation that goes on: nothing that decides a row."""
    stray = flags[:1] if flags and not flags[0].startswith("--") else []
    flat = {} if stray else _settings(flags)
    left = [*stray, *(_flag(name) for name in flat if name not in FREE)]
    if left:
        raise UserError(f"a resumed evaluation keeps what it was asked; leave out {left[0]}.")
    return flat


def _samples(settings: Mapping[str, Any]) -> bool:
    within, budget = (settings.get(config.EVALUATION + name) for name in ("within", "budget"))
    return bool(limits(within, budget))


def _flag(name: str) -> str:
    return f"--{name.removeprefix(config.EVALUATION).replace('_', '-')}"


def _settings(flags: Sequence[str]) -> dict[str, Any]:
    """Names that training has too, such as --batch-size, are here those of the evaluation."""
    flat = settings_from(flags)
    trains = {field.name for field in fields(config.Training)} - set(OWN)
    for name in trains & flat.keys():
        raise UserError(f"{_flag(name)} is a setting of training; leave it out.")
    return {config.EVALUATION + name if name in OWN else name: v for name, v in flat.items()}


def _evaluate(asked: Request, world: World, *, resume: bool) -> int:
    evidence = world.by_first(lambda: _evidence(asked, resume=resume))

    from spat.assessment import already, assess, ending, fan_out
    from spat.training.interrupt import interruptible

    out = asked.out
    if resume and out is not None and (done := world.by_first(lambda: already(out))):
        return _close(asked, done, world)
    plan, model, world = _loaded(asked, world)
    with ExitStack() as held, interruptible(echo(world)) as stop, shown(world) as sinks:
        world.by_first(lambda: _hold(asked, held, resume=resume))
        tell = ending(fan_out(sinks), lambda: bool(stop))
        try:
            with evidence:
                finished = assess(plan, model, out, tell, evidence=evidence, world=world)
        except InterruptedError:
            finished = None
        signal = max(world.gather(stop.signal or 0))
    return _close(asked, finished, world) if finished else _stopped(asked, signal, world)


def _loaded(asked: Request, world: World) -> tuple[Plan, nn.Module, World]:
    """The model and what is to be done with it, the same for all processes."""
    from spat.assessment import check
    from spat.loading import load_target
    from spat.resolve import together

    plan, model = world.agreed(
        lambda: load_target(asked.target, asked.settings, weights=asked.weights)
    )
    plan, world = together(plan, world)
    world.agreed(lambda: check(plan, model))
    return plan, model.to(plan.device), world


def _hold(asked: Request, held: ExitStack, *, resume: bool) -> None:
    """The folder, if there is one, for as long as the evaluation takes."""
    if asked.out is None:
        return
    held.enter_context(claimed(asked.out, resume=resume))
    asked.save()


def _stopped(asked: Request, signal: int, world: World) -> int:
    assert signal
    way = "; nothing was kept: with --out RUN it could go on"
    if asked.out is not None:
        way = f"; go on with: spat evaluate --resume {asked.out}"
    if world.first:
        with contextlib.suppress(OSError):  # the terminal may be what was closed
            print(f"stopped{way}", flush=True)
    return 128 + signal


def _close(asked: Request, finished: Finished, world: World) -> int:
    from spat.reporting.table import print_table

    assert finished.outcomes is not None
    if not world.first:
        return 0
    print_table(finished.outcomes)
    if asked.out is not None:
        print(f"report: {asked.out / 'report.html'}")
    if asked.card is not None:
        print(f"card: {asked.card}; check it with: spat verify {asked.card}")
    return 0


def _evidence(asked: Request, *, resume: bool) -> Evidence:
    """What is to be left for others to check; nothing that is there is written over."""
    from spat.cards import Evidence
    from spat.loading import weights_file

    card, images, each = asked.card, asked.save_adversarial, asked.save_each
    for path, flag in ((card, "--card"), (images, "--save-adversarial")):
        if path is not None and path.exists() and not resume:
            raise UserError(f"{path} already exists; choose another {flag}.")
    if each and images is None:
        raise UserError("--save-each says what --save-adversarial FILE keeps; give both.")
    weights = weights_file(asked.target, asked.weights)
    return Evidence(card=card, images=images, each=each, weights=weights)
