"""The composition root: an Experiment becomes a trained model, Outcomes and a Record.

The only file that knows all the others. Settings are resolved once, saved before the first step,
and name everything that follows from them.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spat import config, tensorfile
from spat.cards import Evidence
from spat.config import Experiment
from spat.contracts import check_not_probabilities
from spat.doubts import flags
from spat.errors import UserError
from spat.evaluation import Keep, Planned, attack_by_name, evaluate, plan_attacks
from spat.models import answer, build_model, check_classifies, head_scale
from spat.records import Event, Outcomes, Record
from spat.reporting.page import page
from spat.reporting.pictures import Picture
from spat.resolve import Plan, gpu_name, require_head, resolve_together
from spat.results import measured, provenance, write_json, write_text
from spat.rng import PerExample
from spat.training.folder import claimed
from spat.training.loop import Trainer
from spat.training.sinks import JsonLines, Sink, TensorBoard, read_events
from spat.world import ALONE, World

BATCH = 250  # images an attack sees at a time
PICTURES = 8  # in the page: half of them broken, half of them held, where there are so many
PROBED = 32  # images on which a Record's doubts look at the model itself
ASKED = 4  # images on which a model answers before it is trained
CANDIDATES = 200  # the pictures are the first of so many test images


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind; `record` and `outcomes` are None where it was stopped."""

    folder: Path
    record: Record | None = None
    outcomes: Outcomes | None = None


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
        return _train_and_measure(
            plan, trainer, folder, _fan_out(told if world.first else ()), stop
        )


def _train_and_measure(
    plan: Plan, trainer: Trainer, folder: Path, tell: Sink, stop: Callable[[], bool]
) -> Finished:
    tell(_started(plan, trainer))
    for event in trainer.run(stop):
        tell(event)
    if trainer.counters.step < trainer.total:
        return Finished(folder)
    ending = _ending(tell, stop)
    return trainer.world.by_first(lambda: _measure(plan, trainer, folder, ending))


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
        world.agreed(lambda: _made_model(plan)),
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


def _made_model(plan: Plan) -> nn.Module:
    settings = plan.experiment.model
    model = build_model(settings.name, seed=plan.experiment.seed, **settings.settings)
    require_head(model, plan.defence, plan.experiment.defence.name)
    check_classifies(model, plan.splits.train[:ASKED].floats()[0], plan.splits.train.classes)
    return model


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


def _fan_out(sinks: Sequence[Sink]) -> Sink:
    def tell(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return tell


def _ending(tell: Sink, stop: Callable[[], bool]) -> Sink:
    """A sink that ends an evaluation between two batches once it is asked to stop."""

    def sink(event: Event) -> None:
        tell(event)
        if stop():
            raise InterruptedError

    return sink


def _measure(plan: Plan, trainer: Trainer, folder: Path, tell: Sink) -> Finished:
    """Evaluate the best weights on the test images and write down everything about it."""
    trainer.model.load_state_dict(trainer.state.best)
    try:
        return assess(plan, trainer.model.eval(), folder, tell, trained=trainer.counters.seconds)
    except InterruptedError:  # what is trained is kept: resuming goes straight to the evaluation
        return Finished(folder)


def assess(
    plan: Plan,
    model: nn.Module,
    folder: Path,
    tell: Sink,
    *,
    trained: float | None = None,
    evidence: Evidence | None = None,
) -> Finished:
    """Evaluate a model as the plan says; leave outcomes, record and page in the folder.

    evidence: listens, and writes a card or the adversarial images where that was asked for
    """
    given, begun = plan.experiment, time.perf_counter()
    x, y = plan.splits.test[: given.n].floats()
    album, evidence = Album(min(len(x), CANDIDATES)), evidence or Evidence()
    evidence.begin(x, y, [one.label for one in planned_attacks(plan, model)])
    outcomes = evaluate(
        model.to(plan.device),
        x,
        y,
        given.attacks,
        eps=plan.eps,
        norm=given.norm,
        seed=given.seed,
        sink=_fan_out((tell, evidence.hear)),
        keep=_keep_all(album.keep, evidence.keep),
    )
    seconds = {"evaluation": round(time.perf_counter() - begun, 1)}
    if trained is not None:
        seconds["training"] = round(trained, 1)
    record, names = make_record(plan, outcomes, model, seconds), plan.splits.train.names
    write_json(folder / "outcomes.json", outcomes.to_json())
    write_json(folder / "record.json", record.to_json())
    evidence.finish(record, outcomes, x, y, names)
    log = folder / "events.jsonl"
    events = read_events(log) if log.exists() else []
    html = page(record, outcomes, events, album.pictures(x, outcomes, names), names)
    write_text(folder / "report.html", html)
    return Finished(folder, record, outcomes)


def make_record(
    plan: Plan, outcomes: Outcomes, model: nn.Module, seconds: Mapping[str, float]
) -> Record:
    ran = planned_attacks(plan, model)
    return Record(
        settings=plan.flat,
        settings_hash=config.digest(plan.flat),
        eps=outcomes.eps,
        norm=outcomes.norm,
        measured=measured(outcomes),
        seeds={"training": plan.experiment.seed, "evaluation": plan.experiment.seed},
        weights_sha256=tensorfile.digest(model.state_dict()),
        attacks={one.label: repr(one.attack) for one in ran},
        notes=outcomes.notes,
        seconds=seconds,
        doubts=flags(outcomes, ran, model, *plan.splits.test[:PROBED].floats()),
        **provenance(gpu_name(plan.device)),
    )


def planned_attacks(plan: Plan, model: nn.Module) -> list[Planned]:
    given = plan.experiment
    return plan_attacks(given.attacks, eps=plan.eps, norm=given.norm, scale=head_scale(model))


def _keep_all(*keeps: Keep) -> Keep:
    def keep(label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        for one in keeps:
            one(label, index, x_adv, predicted)

    return keep


class Album:
    """Keeps the adversarial images of the first few examples, for the page."""

    def __init__(self, candidates: int) -> None:
        self.candidates = candidates
        self.images: dict[str, dict[int, Any]] = {}

    def keep(self, label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        held = self.images.setdefault(label, {})
        for place, image in zip(index.tolist(), x_adv, strict=True):
            if place < self.candidates:
                held[place] = image.cpu().numpy()

    def pictures(self, x: Tensor, outcomes: Outcomes, names: Sequence[str]) -> list[Picture]:
        """Examples under the attack that breaks most: broken and held ones, the first of each."""
        if not self.images:
            return []
        label = min(self.images, key=outcomes.accuracy)
        found, images = outcomes.attacks[label], self.images[label]
        broken = [i for i in images if found.broken[i]][: PICTURES // 2]
        held = [i for i in images if not found.broken[i]][: PICTURES - len(broken)]
        return [
            Picture(
                clean=np.asarray(x[i].cpu()),
                adversarial=images[i],
                label=names[int(outcomes.labels[i])],
                clean_prediction=names[int(outcomes.clean[i])],
                adversarial_prediction=names[int(found.predicted[i])],
                attack=label,
            )
            for i in broken + held
        ]


def craft_images(plan: Plan, model: nn.Module, name: str) -> dict[str, NDArray[Any]]:
    """Test images, adversarial versions of them, and what the model says of both."""
    given = plan.experiment
    x, y = (part.to(plan.device) for part in plan.splits.test[: given.n].floats())
    attack = attack_by_name(name, eps=plan.eps, norm=given.norm)
    check_not_probabilities(answer(model, x[:BATCH]))
    source = PerExample(given.seed, torch.arange(len(x)))
    pieces = [
        attack(model, x[index], y[index], rng=source[index])
        for index in torch.arange(len(x)).split(BATCH)  # type: ignore[no-untyped-call]
    ]
    x_adv = torch.cat(pieces)
    with torch.no_grad():
        clean, adversarial = model(x).argmax(1), model(x_adv).argmax(1)
    tensors = {
        "x": x,
        "x_adv": x_adv,
        "labels": y,
        "clean_prediction": clean,
        "adversarial_prediction": adversarial,
    }
    return {key: tensor.cpu().numpy() for key, tensor in tensors.items()}
