"""A model under the attacks of a plan, and everything that is written down about it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spat import config, tensorfile
from spat.cards import Evidence
from spat.contracts import check_not_probabilities
from spat.doubts import flags
from spat.evaluation import Keep, Planned, attack_by_name, evaluate_together, plan_attacks
from spat.models import answer, head_scale
from spat.records import Event, Outcomes, Record, Scalar
from spat.reporting.page import page
from spat.reporting.pictures import Picture
from spat.resolve import Plan, gpu_name
from spat.results import load, measured, provenance, read_json, write_json, write_text
from spat.rng import PerExample
from spat.training.sinks import Sink, read_events
from spat.world import ALONE, World

BATCH = 250  # images an attack sees at a time
PICTURES = 8  # in the page: half of them broken, half of them held, where there are so many
PROBED = 32  # images on which a Record's doubts look at the model itself
CANDIDATES = 200  # the pictures are among so many of the images of an attack
STATE, OUTCOMES, RECORD = "state", "outcomes.json", "record.json"  # the first goes with the last


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind; `record` and `outcomes` are None where it was stopped."""

    folder: Path | None
    record: Record | None = None
    outcomes: Outcomes | None = None


def check(plan: Plan, model: nn.Module) -> None:
    """Refuse what is no classifier of these images, before a folder is made for it."""
    x, _ = plan.splits.test[: plan.experiment.n][:PROBED].floats()
    check_not_probabilities(answer(model, x.to(plan.device)))


def assess(
    plan: Plan,
    model: nn.Module,
    folder: Path | None,
    tell: Sink,
    *,
    trained: float | None = None,
    evidence: Evidence | None = None,
    world: World = ALONE,
) -> Finished:
    """Evaluate a model as the plan says; leave outcomes, page and record in the folder, if any.

    There it can be stopped at any moment, and goes on where it was when it is called again; the
    record, which is written last, tells that nothing is left to do.
    evidence: listens, and writes a card or the adversarial images where that was asked for
    world: the processes that share the images; the first of them writes
    """
    given, begun = plan.experiment, time.perf_counter()
    x, y = plan.splits.test[: given.n].floats()
    album, evidence = Album(), evidence or Evidence()
    labels = [one.label for one in planned_attacks(plan, model)]
    world.by_first(lambda: evidence.begin(x, y, labels))
    outcomes = evaluate_together(
        model.to(plan.device),
        x,
        y,
        given.attacks,
        eps=plan.eps,
        norm=given.norm,
        batch_size=given.evaluation.size,
        seed=given.seed,
        exact=given.evaluation.exact,
        within=given.evaluation.within,
        budget=given.evaluation.budget,
        state=None if folder is None else folder / STATE,
        save_every=given.evaluation.save_every,
        sink=fan_out((tell, evidence.hear)),
        keep=_keep_all(album.keep, evidence.keep),
        most=CANDIDATES if evidence.images is None else None,
        world=world,
    )
    evidence.add(world.gather(evidence.work))
    outcomes = replace(outcomes, how=_how(outcomes.how, len(x), len(plan.splits.test)))
    seconds = {"evaluation": round(time.perf_counter() - begun, 1)}
    if trained is not None:
        seconds["training"] = round(trained, 1)

    def written() -> Record:
        record, names = make_record(plan, outcomes, model, seconds), plan.splits.train.names
        evidence.finish(record, outcomes, x, y, names)
        if folder is not None:
            _leave(folder, record, outcomes, album.pictures(x, outcomes, names), names)
        return record

    finished = Finished(folder, world.by_first(written), outcomes)
    if folder is not None:
        shutil.rmtree(folder / STATE, ignore_errors=True)
    return finished


def already(folder: Path) -> Finished | None:
    """What an evaluation that came to its end left in a folder."""
    if not (folder / RECORD).exists():
        return None
    shutil.rmtree(folder / STATE, ignore_errors=True)  # of one killed between the two
    outcomes = Outcomes.from_json(read_json(folder / OUTCOMES))
    return Finished(folder, load(folder / RECORD), outcomes)


def ending(tell: Sink, stop: Callable[[], bool]) -> Sink:
    """A sink that ends an evaluation, which is saved, once it is asked to stop."""

    def sink(event: Event) -> None:
        tell(event)
        if stop():
            raise InterruptedError

    return sink


def fan_out(sinks: Sequence[Sink]) -> Sink:
    def tell(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return tell


def _leave(
    folder: Path,
    record: Record,
    outcomes: Outcomes,
    pictures: Sequence[Picture],
    names: Sequence[str],
) -> None:
    log = folder / "events.jsonl"
    events = read_events(log) if log.exists() else []
    write_json(folder / OUTCOMES, outcomes.to_json())
    write_text(folder / "report.html", page(record, outcomes, events, pictures, names))
    write_json(folder / RECORD, record.to_json())


def _how(how: Mapping[str, Scalar], offered: int, of: int) -> dict[str, Scalar]:
    """Where the images offered were not all there are, they are said to be the first."""
    if offered == of:
        return dict(how)
    first, chosen = f"the first {offered} of the test set", how["chosen"]
    return {**how, "of": of, "chosen": first if chosen == "all" else f"{chosen}, of {first}"}


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
        how=outcomes.how,
        seconds=seconds,
        doubts=flags(outcomes, ran, model, *plan.splits.test[:PROBED].floats()),
        **provenance(gpu_name(plan.device)),
    )


def planned_attacks(plan: Plan, model: nn.Module) -> list[Planned]:
    given = plan.experiment
    return plan_attacks(
        given.attacks,
        eps=plan.eps,
        norm=given.norm,
        scale=head_scale(model),
        exact=given.evaluation.exact,
    )


def _keep_all(*keeps: Keep) -> Keep:
    def keep(label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        for one in keeps:
            one(label, index, x_adv, predicted)

    return keep


class Album:
    """Keeps the adversarial images of some examples, for the page: the first of each attack."""

    def __init__(self, most: int = CANDIDATES) -> None:
        self.most = most
        self.images: dict[str, dict[int, Any]] = {}

    def keep(self, label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        held = self.images.setdefault(label, {})
        for place, image in zip(index.tolist(), x_adv[: self.most - len(held)], strict=False):
            held[place] = image.cpu().numpy()

    def pictures(self, x: Tensor, outcomes: Outcomes, names: Sequence[str]) -> list[Picture]:
        """Examples under the attack that breaks most: broken and held ones, the first of each."""
        if not self.images:
            return []
        label = min(self.images, key=outcomes.accuracy)
        found, images = outcomes.attacks[label], self.images[label]
        row = {place: row for row, place in enumerate(outcomes.ids.tolist())}
        broken = [i for i in images if found.broken[row[i]]][: PICTURES // 2]
        held = [i for i in images if not found.broken[row[i]]][: PICTURES - len(broken)]
        return [
            Picture(
                clean=np.asarray(x[i].cpu()),
                adversarial=images[i],
                label=names[int(outcomes.labels[row[i]])],
                clean_prediction=names[int(outcomes.clean[row[i]])],
                adversarial_prediction=names[int(found.predicted[row[i]])],
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
