"""The training loop: batches in, events out.

Every random number is a function of (seed, epoch or step, purpose), so the state of a run is its
weights, the optimiser's buffers and a few counters: a checkpoint holds all of it, and a resumed run
goes on exactly as if it had not stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spat.config import Training
from spat.datasets import Images, crop_flip
from spat.defences._base import Defence, Progress, Terms
from spat.errors import UserError
from spat.interval import interval
from spat.records import Event
from spat.rng import generator
from spat.training.engine import Engine, sgd
from spat.training.saving import Saver
from spat.training.schedule import learning_rate, ramped
from spat.training.state import Counters, State, copied
from spat.training.validation import Validation, validate

EVENT_SECONDS = 0.5  # at most so often a step is told of
EXAMPLES = 4  # images on which the copy that is attacked is compared with the model


@dataclass
class Trainer:
    """One run: `run()` trains `model` in place and yields events; `state` is all it goes by.

    describe: JSON-able facts written into every weights file (what model this is, which settings)
    """

    model: nn.Module
    train: Images
    validation: Images | None
    defence: Defence
    settings: Training
    seed: int = 0
    device: torch.device = torch.device("cpu")
    augment: bool = False
    folder: Path | None = None
    describe: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model.to(self.device)
        self.train = self.train.to(self.device)
        self.batches = math.ceil(len(self.train) / self.settings.batch_size)
        self.per_epoch = self.batches * self.defence.replays
        self.total = self.per_epoch * self.settings.epochs
        settings = self.settings
        optimiser = sgd(
            self.model,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        self.state = State(self.model, optimiser)
        self.engine = Engine(
            self.state,
            precision=settings.precision,
            exact=settings.exact,
            example=self.train[:EXAMPLES].floats()[0],
        )
        if self._decay(0) is not None:
            self.state.begin_average()
        self.saver = None if self.folder is None else self._saver(self.folder)
        self._notes: list[str] = []
        self._told_at = -math.inf

    def _saver(self, folder: Path) -> Saver:
        return Saver(folder, interval(self.settings.save_every, "save_every"), self.describe)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Train to the end, or to the step in which `stop()` becomes true."""
        for text in self._remarks():
            yield Event("note", {"text": text})
        while self.counters.step < self.total and not stop():
            yield from self._train_one()
            if self.counters.step % self.per_epoch == 0:
                yield from self._end_epoch()
            elif self.saver is not None and self.saver.is_due(self.counters.step):
                yield self.saver.try_to_save(self.state)
        stopped = self.counters.step < self.total
        if stopped and self.saver is not None:
            yield self.saver.save(self.state)
        yield Event(
            "end",
            {
                "epochs": self.settings.epochs,
                "step": self.counters.step,
                "seconds": round(self.counters.seconds, 2),
                "stopped": stopped,
            },
        )

    def resume(self) -> None:
        """Go on from the newest whole checkpoint of the run folder."""
        assert self.saver is not None
        self._notes += self.saver.restore(self.state)

    def _remarks(self) -> Iterator[str]:
        """What is worth knowing before the first step."""
        yield from self._notes
        if self.defence.warmup_epochs >= self.settings.epochs:
            yield (
                f"the first {self.defence.warmup_epochs} epochs train a plainer loss, and this run "
                f"ends after {self.settings.epochs}: shorten the defence's warm-up."
            )

    @property
    def counters(self) -> Counters:
        return self.state.counters

    def _train_one(self) -> Iterator[Event]:
        begun, step = time.perf_counter(), self.counters.step
        epoch, position = divmod(step, self.per_epoch)
        x, y = self._batch(epoch, position, step)
        progress = Progress(epoch + 1, self.settings.epochs, step, self.total)
        lr = learning_rate(self.settings, step / self.per_epoch)
        terms = self._update(x, y, progress, lr)
        seconds = time.perf_counter() - begun
        self.counters.step += 1
        self.counters.seconds += seconds
        self._count(terms, len(x))
        yield from self._tell_step(progress, lr, terms, len(x) / seconds)

    def _batch(self, epoch: int, position: int, step: int) -> tuple[Tensor, Tensor]:
        """Batches of an epoch differ by at most one image: no short one upsets BatchNorm."""
        order = torch.randperm(len(self.train), generator=generator(self.seed, "order", epoch))
        index = torch.tensor_split(order, self.batches)[position // self.defence.replays]
        x, y = self.train.floats(index)
        if self.augment:  # the same way each time that a batch is replayed
            once = step // self.defence.replays
            x = crop_flip(x, generator(self.seed, "augment", once))
        return x, y

    def _update(self, x: Tensor, y: Tensor, progress: Progress, lr: float) -> Terms:
        """One update, and a step of the running average of the weights, if there is one."""
        terms = self.engine.update(
            ramped(self.defence, self.settings, progress.step / self.total),
            x,
            y,
            seed=self.seed,
            step=progress.step,
            lr=lr,
            progress=progress,
            accept=lambda terms: self._refuse_nonfinite(terms, progress),
        )
        decay = self._decay(progress.step)
        if decay is not None:
            self.state.average(decay)
        return terms

    def _decay(self, step: int) -> float | None:
        """Of the running average of the weights: the defence's own, or the settings'."""
        if self.settings.ema > 0:
            return min(self.settings.ema, (step + 1) / (step + 10))
        return self.defence.ema_decay(step)

    def _refuse_nonfinite(self, terms: Terms, progress: Progress) -> None:
        if math.isfinite(terms.loss.item()):
            return
        kept = "there is none yet" if self.saver is None else self.saver.last_good()
        raise UserError(
            f"the loss became {terms.loss.item()} at step {progress.step} "
            f"(epoch {progress.epoch}); the update was not made. Lower lr, or lengthen warmup; "
            f"of the last good checkpoint: {kept}."
        )

    def _count(self, terms: Terms, n: int) -> None:
        """Sums over examples, so that a mean over the epoch weighs every image alike."""
        counters = self.counters
        values = {"loss": terms.per_example, **{f"term.{k}": v for k, v in terms.named.items()}}
        for name, value in values.items():
            total = float(value.detach().sum())
            counters.sums[name] = counters.sums.get(name, 0.0) + total
        counters.seen += n

    def _tell_step(
        self, progress: Progress, lr: float, terms: Terms, speed: float
    ) -> Iterator[Event]:
        now = time.monotonic()
        if now - self._told_at < EVENT_SECONDS:
            return
        self._told_at = now
        done = self.counters.step
        eta = self.counters.seconds / done * (self.total - done)
        yield Event(
            "step",
            {
                "epoch": progress.epoch,
                "epochs": progress.epochs,
                "step": done,
                "steps": self.total,
                "lr": lr,
                "loss": terms.loss.item(),
                **{
                    f"term.{name}": float(value.detach().mean())
                    for name, value in terms.named.items()
                },
                "images_per_s": round(speed, 1),
                "eta_s": round(eta, 1),
            },
        )

    def _end_epoch(self) -> Iterator[Event]:
        counters = self.counters
        epoch = counters.step // self.per_epoch
        means = {name: total / counters.seen for name, total in counters.sums.items()}
        counters.sums, counters.seen = {}, 0
        held = self._validate()
        score = held.robust if held is not None else float(epoch)  # without one, the last is best
        is_best = score > counters.best
        if is_best:
            counters.best, counters.best_epoch = score, epoch
            self.state.best = copied(self.state.judged())
        yield Event(
            "epoch",
            {
                "epoch": epoch,
                "epochs": self.settings.epochs,
                "step": counters.step,
                **means,
                "val_clean": held.clean if held else None,
                "val_robust": held.robust if held else None,
                "val_attack": held.attack if held else None,
                "lr": learning_rate(self.settings, (counters.step - 1) / self.per_epoch),
                "images_per_s": round(
                    counters.step * len(self.train) / self.per_epoch / counters.seconds, 1
                ),
                "best": is_best,
                "seconds": round(counters.seconds, 2),
            },
        )
        if self.saver is not None:
            is_last = counters.step == self.total
            save = self.saver.save if is_last else self.saver.try_to_save
            yield save(self.state)

    def _validate(self) -> Validation | None:
        if self.validation is None:
            return None
        chosen = self.validation[: self.settings.validation_images].to(self.device)
        with self._judged_model() as model:
            attacked = self.engine.attacked()
            return validate(model, attacked, chosen, self.defence.attack, self.seed)

    @contextmanager
    def _judged_model(self) -> Iterator[nn.Module]:
        """The model with the weights that count; its own are put back."""
        if self.state.averaged is None:
            yield self.model
            return
        own = copied(self.model.state_dict())
        self.model.load_state_dict(self.state.judged())
        try:
            yield self.model
        finally:
            self.model.load_state_dict(own)
