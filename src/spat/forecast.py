"""What a training run will need of this machine, before it begins: measured on made-up images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from spat.config import AUTO
from spat.errors import UserError
from spat.models import build_model, check_classifies
from spat.resolve import Plan, require_head
from spat.training.room import GIB, SHARE, free_memory, sized
from spat.training.trial import FEW, Memory, Trial
from spat.world import ALONE, World

ASKED = 4  # images on which a model answers before all else
PATIENCE = 10.0  # seconds that a timed step may take, or fewer images are timed


def build(plan: Plan) -> nn.Module:
    """The model, which must suit the defence and the data."""
    chosen = plan.experiment.model
    model = build_model(chosen.name, seed=plan.experiment.seed, **chosen.settings)
    require_head(model, plan.defence, plan.experiment.defence.name)
    check_classifies(model, plan.splits.train[:ASKED].floats()[0], plan.splits.train.classes)
    return model


def with_batch_size(plan: Plan, world: World = ALONE) -> Plan:
    """The plan with a number in place of `batch_size: auto`, which then is what a run saves."""
    training = plan.experiment.training
    if training.batch_size != AUTO:
        return plan
    if world.size > 1:
        raise UserError(
            f"batch_size auto tries out one process's memory, and {world.size} share a batch: give "
            "it a number."
        )
    chosen, note = sized(training, build(plan), plan.defence, plan.splits.train, plan.device)
    flat = {**plan.flat, "batch_size": chosen.batch_size}
    whole = replace(plan.experiment, training=chosen)
    return replace(plan, experiment=whole, flat=flat, notes=(*plan.notes, note))


def forecast(plan: Plan) -> Iterator[tuple[str, str]]:
    """Facts with their names, as they become known."""
    model, train = build(plan), plan.splits.train
    name, settings = plan.experiment.model.name, plan.experiment.training
    parameters = sum(p.numel() for p in model.parameters())
    yield "model", f"{name}, {parameters:,} parameters, {plan.experiment.defence.name}"
    yield "data", f"{plan.splits.name}, {len(train):,} training images of {_sides(train.shape)}"
    trial = Trial(model, plan.defence, settings, train.shape, plan.device)
    yield "attacked", _attacked(trial)
    low = trial.engine.mixed
    yield "precision", "bfloat16, losses float32" if low else "float32"
    memory, free = trial.memory(), free_memory(plan.device)
    at_once = min(settings.micro_batch or settings.size, settings.size)
    yield "memory", _memory(memory, at_once, free)
    yield "time", _time(trial, plan, memory, at_once, free)


def _attacked(trial: Trial) -> str:
    copy = trial.engine.copy
    return "the model itself (exact)" if copy is None else " ".join(copy.notes)


def _memory(memory: Memory, at_once: int, free: int) -> str:
    needed = memory.of(at_once)
    text = (
        f"about {_bytes(needed)} for a step of {at_once} images at once "
        f"({_bytes(memory.fixed)} + {_bytes(memory.each)} an image), {_bytes(free)} are free"
    )
    if needed <= SHARE * free:
        return text
    room = int((SHARE * free - memory.fixed) // memory.each)
    return text + (f": set micro_batch to {room} or less" if room > 0 else ": too little")


def _time(trial: Trial, plan: Plan, memory: Memory, at_once: int, free: int) -> str:
    """From as many images as fit and do not take too long."""
    train, size = plan.splits.train, plan.experiment.training.size
    quick = trial.seconds(FEW, steps=1)
    tried = min(at_once, len(train))
    while tried > FEW and (quick * tried / FEW > PATIENCE or memory.of(tried) > SHARE * free):
        tried //= 2
    per_image = trial.seconds(tried) / tried
    replays = plan.defence.replays
    updates = -(-len(train) // size) * replays
    return (
        f"about {_seconds(per_image * len(train) * replays)} an epoch of {updates:,} updates, "
        f"{1 / per_image:.3g} images/s: a prediction from 2 steps of {tried} images, without "
        "validation"
    )


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _bytes(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.3g} MiB"


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
