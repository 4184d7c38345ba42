"""What the guard does in a run: says it once, or goes back; and a resumed run does the same."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import spat
from spat.defences._base import Defence, Terms
from spat.errors import UserError
from spat.records import Event
from spat.training import loop
from spat.training.loop import Trainer
from spat.training.state import copied
from spat.training.validation import Validation
from toys import equal, states, trainer


def notes(events: list[Event]) -> list[str]:
    return [event.values["text"] for event in events if event.kind == "note"]


@dataclass(frozen=True, kw_only=True)
class Explodes(Defence):
    """The loss is NaN at some steps, as long as the learning rate has not been halved enough."""

    passes = "clean"
    steps: tuple[int, ...] = (5,)
    times: list[int] = dataclasses.field(default_factory=list)
    most: int = 1

    def terms(self, clean: Tensor, adv: None, labels: Tensor, **context: Any) -> Terms:
        step = context["progress"].step
        bad = step in self.steps and self.times.count(step) < self.most
        self.times.append(step)
        loss = torch.nn.functional.cross_entropy(clean, labels, reduction="none")
        return Terms(loss * (torch.nan if bad else 1.0))


def exploding(folder: Path | None = None, **settings: Any) -> Trainer:
    subject = trainer(folder, guard="rollback", epochs=3)
    subject.defence = Explodes(**settings)
    return subject


def test_a_nan_loss_takes_the_run_back_to_the_last_good_epoch() -> None:
    """Step 5 is the second of epoch 2: step 4 is undone, step 5 made from epoch 1."""
    subject = exploding()
    kept: dict[str, Tensor] = {}
    events = []
    for event in subject.run():
        events.append(event)
        if event.kind == "epoch" and event.values["epoch"] == 1:
            kept = states(subject.model)
        if event.kind == "note":
            assert equal(kept, states(subject.model))
            assert subject.counters.step == 5
    assert notes(events) == [
        "the loss became nan at step 5 (epoch 2); the weights are those of epoch 1 again, "
        "at 0.5 of the learning rate (rollback 1 of 3)."
    ]
    assert subject.counters.step == subject.total


def test_without_a_good_epoch_it_goes_back_to_the_start() -> None:
    subject = exploding(steps=(2,))
    before = states(subject.model)
    events = iter(subject.run())
    note = next(event for event in events if event.kind == "note")
    assert "the weights are those of the start again" in note.values["text"]
    assert equal(before, states(subject.model))


def test_a_rollback_halves_the_rate_of_every_later_step() -> None:
    plain = [e.values["lr"] for e in trainer(epochs=3).run() if e.kind == "epoch"]
    guarded = [e.values["lr"] for e in exploding().run() if e.kind == "epoch"]
    assert guarded == [plain[0], plain[1] / 2, plain[2] / 2]


def test_logits_that_are_no_numbers_are_as_good_as_a_loss_that_is_none() -> None:
    """The inner attack meets them first. The epoch that ends with them is no good one."""
    subject = trainer(guard="rollback")
    events = iter(subject.run())
    next(event for event in events if event.kind == "epoch")
    subject.model.out.bias.data[0] = torch.inf  # type: ignore[union-attr, operator]
    told = notes(list(events))
    assert told[0].startswith(
        "the model returns NaN or infinite logits at step 4 (epoch 2); "
        "the weights are those of the start again"
    )
    assert bool(subject.model.out.bias.isfinite().all())  # type: ignore[union-attr, operator]


def test_after_three_rollbacks_a_nan_loss_ends_the_run() -> None:
    subject = exploding(most=10**6)
    with pytest.raises(UserError, match=r"the loss became nan at step 5 \(epoch 2\)"):
        list(subject.run())
    assert subject.counters.watch.rollbacks == 3
    assert subject.guard.rate == 0.125


@pytest.mark.parametrize("stop_after", [4, 6, 7, 9])
def test_a_resumed_run_goes_back_to_the_same_place(tmp_path: Path, stop_after: int) -> None:
    """What it goes back to, the rate and the momentum, before and after a rollback, are saved."""

    def made(folder: Path | None, times: list[int]) -> Trainer:
        subject = trainer(folder, guard="rollback", epochs=3, ema=0.9)
        subject.defence = Explodes(steps=(5, 8), times=times)
        return subject

    whole, times = made(None, []), list[int]()
    list(whole.run())
    left = iter(range(stop_after))
    list(made(tmp_path, times).run(stop=lambda: next(left, None) is None))
    second = made(tmp_path, times)
    second.resume()
    list(second.run())
    assert whole.counters.watch == second.counters.watch
    assert whole.counters.watch.rollbacks == 2
    assert equal(whole.state.tensors(), second.state.tensors())


@pytest.fixture
def collapse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation that reports a known sequence in place of what the toy would give."""
    robust = iter((0.4, 0.5, 0.05, 0.04, 0.5, 0.02, 0.5, 0.5))

    def validate(*given: object) -> Validation:
        return Validation(clean=0.8, single=0.6, robust=next(robust), attack="pgd-10", n=1000)

    monkeypatch.setattr(loop, "validate", validate)


@pytest.mark.usefixtures("collapse")
def test_a_trouble_is_told_once_until_it_is_over() -> None:
    told = notes(list(trainer(guard="warn", epochs=8).run()))
    assert [text.partition(":")[0] for text in told] == [
        "catastrophic overfitting in epoch 3",
        "catastrophic overfitting in epoch 6",
    ]
    assert told[0].endswith("; the best epoch is kept; --guard rollback would go back by itself.")


@pytest.mark.usefixtures("collapse")
def test_off_is_off() -> None:
    assert notes(list(trainer(guard="off", epochs=4).run())) == []


@pytest.mark.usefixtures("collapse")
def test_a_rollback_after_an_epoch_puts_weights_and_momentum_back() -> None:
    subject = trainer(guard="rollback", epochs=3)
    kept = []
    for event in subject.run():
        if event.kind == "epoch":
            kept.append(copied(subject.state._moving()))
        if event.kind == "note":
            assert "the weights are those of epoch 2 again, at 0.5" in event.values["text"]
            now = subject.state._moving()
            assert equal(now, kept[1])
            assert not equal(now, kept[2])
            assert any(name.startswith("momentum/") for name in now)
    assert subject.counters.watch.rollbacks == 1
    assert subject.counters.best_epoch == 2


@pytest.mark.usefixtures("collapse")
def test_a_clean_defence_is_not_judged_by_robustness() -> None:
    subject = trainer(guard="warn", epochs=4)
    subject.defence = spat.defence("natural")
    assert notes(list(subject.run())) == []
