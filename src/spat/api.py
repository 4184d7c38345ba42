"""The front door from Python: build any component by name, train and evaluate any model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spat import catalog
from spat.attacks._base import Attack
from spat.config import AUTO, Training
from spat.contracts import check_images, check_labels, check_module
from spat.datasets import Images, Splits, carve
from spat.defences._base import Defence
from spat.errors import unknown
from spat.evaluation import evaluate, transfer
from spat.fast import Compile, Precision
from spat.models import build_model, check_classifies
from spat.records import Event
from spat.resolve import find_device, require_head
from spat.training.batches import alone
from spat.training.engine import Engine, sgd
from spat.training.loop import Trainer
from spat.training.room import sized
from spat.training.state import State

__all__ = ["Trained", "attack", "data", "defence", "evaluate", "model", "step", "train", "transfer"]


def model(name: str, *, seed: int = 0, **settings: Any) -> nn.Module:
    """A model by name (`spat list model`) or by import path, `package.module:factory`."""
    return build_model(name, seed=seed, **settings)


def data(name: str, *, validation: float = 0.1, seed: int = 0, **settings: Any) -> Splits:
    """The training, validation and test images of a data set by name (`spat list dataset`)."""
    splits: Splits = catalog.build("dataset", name, **settings).load(
        validation=validation, seed=seed
    )
    return splits


def attack(name: str, **settings: Any) -> Attack:
    """An attack by name (`spat list attack`): call it with a model, images and labels."""
    built: Attack = catalog.build("attack", name, **settings)
    return built


def defence(name: str, **settings: Any) -> Defence:
    """A defence by name (`spat list defence`): an inner attack and a loss, `terms`."""
    built: Defence = catalog.build("defence", name, **settings)
    return built


@dataclass(frozen=True)
class Trained:
    """What training leaves: the model (with the best weights), and every event of the run."""

    model: nn.Module
    best_epoch: int
    events: list[Event] = field(repr=False)


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    defence: Defence | str = "spat",
    out: Path | str | None = None,
    seed: int = 0,
    device: str = "auto",
    augment: bool = False,
    sink: Callable[[Event], None] = lambda event: None,
    **settings: Any,
) -> Trained:
    """Train any model on images in [0, 1] (or bytes) and labels, in place.

    The model ends with the weights of the epoch that was best on the validation images, which are
    carved from x (`validation=0` keeps all for training; then the last epoch counts as best).
    settings: those of `spat.config.Training`: epochs, batch_size, lr, schedule, ...
    out: a folder for weights, checkpoints and events; without one nothing is written
    """
    chosen = _chosen(model, defence)
    options = Training(**_known(settings))
    images = _images(x, y)
    check_classifies(model, images[:4].floats()[0], images.classes)
    kept, held = images, None
    if options.validation > 0:
        kept, held = carve(images, options.validation, seed)
    events: list[Event] = []
    if options.batch_size == AUTO:
        options, note = sized(options, model, chosen, kept, find_device(device))
        events.append(Event("note", {"text": note}))
        sink(events[0])
    trainer = Trainer(
        model,
        kept,
        held,
        chosen,
        options,
        seed=seed,
        device=find_device(device),
        augment=augment,
        folder=None if out is None else Path(out),
    )
    for event in trainer.run():
        events.append(event)
        sink(event)
    model.load_state_dict(trainer.state.best)
    return Trained(model, trainer.counters.best_epoch, events)


def step(
    model: nn.Module,
    defence: Defence | str = "spat",
    *,
    precision: Precision = "auto",
    exact: bool = False,
    compile: Compile = "off",
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 2e-4,
    seed: int = 0,
) -> Callable[[Tensor, Tensor], float]:
    """One training step as a function: `step(x, y)` attacks, updates the model, returns the loss.

    x: float images in [0, 1], on the model's device; y: int64 labels
    precision: float32, bfloat16 (mixed; losses never), or auto: bfloat16 where it is fast
    exact: attack the model itself in float32: iterates are those of the literal algorithm
    compile: the attacked copy: off, inductor (torch.compile), or cuda-graphs on a GPU
    """
    chosen = _chosen(model, defence)
    state = State(model, sgd(model, lr=lr, momentum=momentum, weight_decay=weight_decay))
    engine = Engine(state, precision=precision, exact=exact, compile=compile)

    def one(x: Tensor, y: Tensor) -> float:
        done = state.counters.step
        means = engine.update(chosen, alone(x, y), seed=seed, step=done, lr=lr)
        state.counters.step += 1
        return means["loss"]

    return one


def _chosen(model: nn.Module, defence: Defence | str) -> Defence:
    """The defence, which must suit the model's head."""
    check_module(model)
    chosen = catalog.build("defence", defence) if isinstance(defence, str) else defence
    require_head(model, chosen, type(chosen).__name__.lower())
    return chosen


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    known = {setting.name for setting in catalog.flatten(Training)}
    for name in settings:
        if name not in known:
            raise unknown("setting of training", name, known)
    return settings


def _images(x: Tensor, y: Tensor) -> Images:
    """Bytes are kept as bytes; floats in [0, 1] as they are, in float32."""
    if not isinstance(x, Tensor) or x.dtype != torch.uint8:
        check_images(x)
        x = x.float()
    check_labels(y, len(x))
    names = tuple(str(label) for label in range(int(y.max()) + 1))
    return Images(x, y.long(), names)
