"""The composition root: an Experiment becomes a trained model, Outcomes and a Record.

The only file that knows all the others. Settings are resolved once, saved before the first step,
and name everything that follows from them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from spat import config
from spat.assessment import Finished, already, assess, ending, fan_out
from spat.config import Experiment
from spat.errors import UserError
from spat.folder import claimed
from spat.forecast import build, with_batch_size
from spat.records import Event
from spat.resolve import Plan, resolve_together
from spat.results import write_json
from spat.training.loop import Trainer
from spat.training.sinks import JsonLines, Sink, TensorBoard
from spat.world import ALONE, World


def run(
    given: Experiment,
    folder: Path,
    *,
    sinks: Sequence[Sink] = (),
    stop: Callable[[], bool] = lambda: False,
    resume: bool = False,
    tensorboard: bool = False,
    world: World = ALONE,
) -> Finished:
    """Train, evaluate the best weights, and leave weights, events, outcomes, record and page.

    world: the processes that train together; the first alone has the folder and tells the sinks
    """
    plan, world = resolve_together(given, world)
    plan = with_batch_size(plan, world)
    trainer = make_trainer(plan, folder, world)
    told = list(sinks)
    with ExitStack() as held:

        def begin() -> None:
            """Last of what can fail: a mistake leaves no folder behind."""
            held.enter_context(claimed(folder, resume=resume))
            if not resume:
                digest = config.digest(plan.flat)
                write_json(folder / "settings.json", {"hash": digest, "settings": plan.flat})
            told.insert(0, JsonLines(folder / "events.jsonl"))
            if tensorboard:
                told.append(TensorBoard(folder / "tensorboard"))

        world.by_first(begin)
        if resume:
            trainer.resume()
        return _train_and_measure(plan, trainer, folder, fan_out(told if world.first else ()), stop)


def _train_and_measure(
    plan: Plan, trainer: Trainer, folder: Path, tell: Sink, stop: Callable[[], bool]
) -> Finished:
    tell(_started(plan, trainer))
    for text in plan.notes:
        tell(Event("note", {"text": text}))
    for event in trainer.run(stop):
        tell(event)
    if trainer.counters.step < trainer.total:
        return Finished(folder)
    return _measure(plan, trainer, folder, ending(tell, stop))


def load_run(folder: Path) -> Experiment:
    """The experiment of a run folder, with every setting as it was resolved."""
    path = folder / "settings.json"
    try:
        saved = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{folder} is not a run folder: it has no settings.json.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        saved = None
    settings = saved.get("settings") if isinstance(saved, dict) else None
    if not isinstance(settings, dict):
        raise UserError(f"{path} is not a whole settings file.")
    return config.experiment(settings)


def make_trainer(plan: Plan, folder: Path | None, world: World = ALONE) -> Trainer:
    return Trainer(
        world.agreed(lambda: build(plan)),
        plan.splits.train,
        plan.splits.validation,
        plan.defence,
        plan.experiment.training,
        seed=plan.experiment.seed,
        device=plan.device,
        augment=plan.experiment.training.augment == "crop-flip",
        folder=folder,
        describe={"settings": plan.flat, "classes": list(plan.splits.train.names)},
        world=world,
    )


def next_free(folder: Path) -> Path:
    """This folder, or the first of its numbered siblings (`demo-2`) that is not there yet."""
    candidates = (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))
    return folder if not folder.exists() else next(c for c in candidates if not c.exists())


def _started(plan: Plan, trainer: Trainer) -> Event:
    held = plan.splits.validation
    return Event(
        "start",
        {
            "settings": plan.flat,
            "train": len(plan.splits.train),
            "validation": len(held) if held is not None else 0,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "device": str(plan.device),
            "precision": plan.experiment.training.precision,
            "steps_per_epoch": trainer.per_epoch,
            "epochs": plan.experiment.training.epochs,
        },
    )


def _measure(plan: Plan, trainer: Trainer, folder: Path, tell: Sink) -> Finished:
    """Evaluate the best weights on the test images and write down everything about it."""
    world, trained = trainer.world, trainer.counters.seconds
    if done := world.by_first(lambda: already(folder)):
        return done
    trainer.model.load_state_dict(trainer.state.best)
    try:
        return assess(plan, trainer.model.eval(), folder, tell, trained=trained, world=world)
    except InterruptedError:  # what is trained is kept: resuming goes straight to the evaluation
        return Finished(folder)
