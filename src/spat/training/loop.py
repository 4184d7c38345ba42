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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spat.config import Training
from spat.datasets import Images
from spat.defences._base import Defence, Progress
from spat.errors import NonFiniteError, UserError
from spat.interval import interval
from spat.records import Event
from spat.training.batches import Batch, batch_at
from spat.training.engine import Engine, Means, sgd
from spat.training.guard import Guard
from spat.training.parts import normalises_batches
from spat.training.saving import Saver, take_up
from spat.training.schedule import learning_rate, ramped
from spat.training.sizes import image_scale, require_sizes
from spat.training.state import Counters, State, copied
from spat.training.symptoms import Reading
from spat.training.validation import Validation, validate
from spat.world import ALONE, World

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
    world: World = ALONE

    def __post_init__(self) -> None:
        self.model.to(self.device)
        self.train = self.train.to(self.device)
        self.batches = math.ceil(len(self.train) / self.settings.size)
        self._refuse_empty_shares()
        self.per_epoch = self.batches * self.defence.replays
        self.total = self.per_epoch * self.settings.epochs
        settings, example = self.settings, self.train[:EXAMPLES].floats()[0]
        require_sizes(self.model, example, settings)
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
            compile=settings.compile,
            example=example,
            world=self.world,
            sync=settings.sync_batchnorm,
            micro_batch=settings.micro_batch,
        )
        if self._decay(0) is not None:
            self.state.begin_average()
        self.guard = Guard(settings.guard, self.state)
        self.saver = None if self.folder is None else self._saver(self.folder)  # the first one's
        self._notes: list[str] = []
        self._told_at = -math.inf

    def _saver(self, folder: Path) -> Saver:
        return Saver(folder, interval(self.settings.save_every, "save_every"), self.describe)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Train to the end, or to the step in which `stop()` becomes true.

        Of several processes all stop at the step in which one of them is asked to; the first saves.
        """
        for text in self._remarks():
            yield Event("note", {"text": text})
        while self.counters.step < self.total:
            is_asked_to_stop, is_due = self.world.either(stop(), self._is_save_due())
            if is_asked_to_stop:
                break
            if is_due:
                yield self._save(must=False)
            before = self.counters.step
            yield from self._train_one()
            if self.counters.step == before:  # the guard went back instead
                continue
            if self.counters.step % self.per_epoch == 0:
                yield from self._end_epoch()
        stopped = self.counters.step < self.total
        if stopped and self.saver is not None:
            yield self._save(must=True)
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
        """Go on from the newest whole checkpoint of the run folder, which the first process reads.

        It holds the state of all, whatever their number was: each takes its share.
        """
        assert self.saver is not None
        self._notes += take_up(self.state, self.world.by_first(self.saver.found))
        self.saver.tried_step = self.counters.step
        if self.state.carried is not None:
            self.state.carried = self.world.mine(self.state.carried)

    def _is_save_due(self) -> bool:
        if self.saver is None or not self.world.first:
            return False
        return self.saver.is_due(self.counters.step)

    def _save(self, *, must: bool) -> Event:
        """By the first process, for all.

        must: no other save follows, so that this one has to succeed
        """
        assert self.saver is not None
        save = self.saver.save if must else self.saver.try_to_save
        whole = replace(self.state, carried=self.world.whole(self.state.carried))
        return self.world.by_first(lambda: save(whole))

    def _remarks(self) -> Iterator[str]:
        """What is worth knowing before the first step."""
        yield from self._notes
        if self.defence.warmup_epochs >= self.settings.epochs:
            yield (
                f"the first {self.defence.warmup_epochs} epochs train a plainer loss, and this run "
                f"ends after {self.settings.epochs}: shorten the defence's warm-up."
            )
        size, most = self.settings.size, self.settings.micro_batch
        if most is not None and most < size and normalises_batches(self.model):
            yield (
                f"BatchNorm sees parts of at most {most} images, not the whole batch of {size}: "
                "as when training with batches of that size; all else is the same."
            )

    @property
    def counters(self) -> Counters:
        return self.state.counters

    def _train_one(self) -> Iterator[Event]:
        begun, step = time.perf_counter(), self.counters.step
        epoch, position = divmod(step, self.per_epoch)
        progress = Progress(epoch + 1, self.settings.epochs, step, self.total)
        batch = self._batch(epoch, position, step).scaled(image_scale(self.settings, progress))
        lr = self._rate(step)
        try:
            means = self._update(batch, progress, lr)
        except NonFiniteError as error:
            yield self._gone_back(str(error).partition(";")[0], progress)
            return
        seconds = time.perf_counter() - begun
        self.counters.step += 1
        self.counters.seconds += seconds
        self._count(means, batch.n)
        yield from self._tell_step(progress, lr, means, batch.n / seconds)

    def _batch(self, epoch: int, position: int, step: int) -> Batch:
        """This process's share of a step's images."""
        replays = self.defence.replays
        batch = batch_at(
            self.train,
            self.batches,
            position // replays,
            seed=self.seed,
            epoch=epoch,
            world=self.world,
        )
        # The same way each time that a batch is replayed.
        return batch.augmented(self.seed, "augment", step // replays) if self.augment else batch

    def _update(self, batch: Batch, progress: Progress, lr: float) -> Means:
        """One update, and a step of the running average of the weights, if there is one."""
        means = self.engine.update(
            ramped(self.defence, self.settings, progress),
            batch,
            seed=self.seed,
            step=progress.step,
            lr=lr,
            progress=progress,
            accept=lambda means: refuse_nonfinite(means["loss"]),
        )
        decay = self._decay(progress.step)
        if decay is not None:
            self.state.average(decay)
        return means

    def _rate(self, step: int) -> float:
        return learning_rate(self.settings, step / self.per_epoch) * self.guard.rate

    def _decay(self, step: int) -> float | None:
        """Of the running average of the weights: the defence's own, or the settings'."""
        if self.settings.ema > 0:
            return min(self.settings.ema, (step + 1) / (step + 10))
        return self.defence.ema_decay(step)

    def _refuse_empty_shares(self) -> None:
        smallest = len(self.train) // self.batches
        if smallest < self.world.size:
            raise UserError(
                f"{self.world.size} processes cannot share a batch of {smallest} images: raise "
                "batch_size or start fewer processes."
            )

    def _gone_back(self, what: str, progress: Progress) -> Event:
        """The way back from a step that gave no numbers; where there is none, the run ends."""
        what = f"{what} at step {progress.step} (epoch {progress.epoch})"
        text = self.guard.after_nonfinite(what)
        if not text:
            saver = self.saver
            kept = self.world.by_first(saver.last_good) if saver else "there is none yet"
            raise UserError(
                f"{what}; the update was not made. Lower lr, lengthen warmup or use "
                f"--guard rollback; of the last good checkpoint: {kept}."
            ) from None
        return Event("note", {"text": text})

    def _count(self, means: Means, n: int) -> None:
        """Sums over examples, so that a mean over the epoch weighs every image alike."""
        sums = self.counters.sums
        self.counters.sums = sums | {k: sums.get(k, 0.0) + n * mean for k, mean in means.items()}
        self.counters.seen += n

    def _tell_step(
        self, progress: Progress, lr: float, means: Means, speed: float
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
                **means,
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
                "val_single": held.single if held else None,
                "val_attack": held.attack if held else None,
                "lr": self._rate(counters.step - 1),
                "images_per_s": round(
                    counters.step * len(self.train) / self.per_epoch / counters.seconds, 1
                ),
                "best": is_best,
                "seconds": round(counters.seconds, 2),
            },
        )
        yield from self._guarded(epoch, held, means["loss"])
        if self.saver is not None:
            yield self._save(must=counters.step == self.total)

    def _guarded(self, epoch: int, held: Validation | None, loss: float) -> Iterator[Event]:
        now = None
        if held is not None and self.defence.passes != "clean":
            now = Reading(epoch, held.clean, held.single, held.robust, loss, held.n)
        text = self.guard.after_epoch(epoch, now)
        if text:
            yield Event("note", {"text": text})

    def _validate(self) -> Validation | None:
        if self.validation is None:
            return None
        chosen = self.validation[: self.settings.validation_images].to(self.device)
        with self._judged_model() as model:
            attacked = self.engine.attacked()
            at_once = self.settings.micro_batch or self.settings.size
            budget = self.defence.attack
            return validate(model, attacked, chosen, budget, self.seed, self.world, at_once)

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


def refuse_nonfinite(loss: float) -> None:
    if not math.isfinite(loss):
        raise NonFiniteError(f"the loss became {loss}")
