"""The loop: deterministic, resumable bit by bit, honest about what it chose, and careful."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional
from golden.vectors import CASES
from spat.config import Training
from spat.datasets import Images
from spat.defences._base import Defence, Terms
from spat.errors import UserError
from spat.records import Event
from spat.rng import generator
from spat.training import checkpoint
from spat.training.loop import Trainer
from spat.training.state import average_, copied
from toys import equal, states, toy, trainer


def test_two_runs_are_bit_identical_and_leave_the_global_generator() -> None:
    one, other = trainer(), trainer()
    before = torch.get_rng_state()
    list(one.run())
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(100)  # the second run starts from another global state
    list(other.run())
    assert equal(states(one.model), states(other.model))
    assert equal(one.state.best, other.state.best)


def test_another_seed_is_another_run() -> None:
    one, other = trainer(), trainer()
    other.seed = 1
    list(one.run())
    list(other.run())
    assert not equal(states(one.model), states(other.model))


@pytest.mark.parametrize("stop_after", [1, 3, 4, 5, 7])
def test_a_stopped_and_resumed_run_is_bit_identical(tmp_path: Path, stop_after: int) -> None:
    """In the middle of an epoch, at its end, and after it; dropout, momentum and best included."""
    whole = trainer()
    events = list(whole.run())
    first = trainer(tmp_path)
    left = iter(range(stop_after))
    list(first.run(stop=lambda: next(left, None) is None))
    assert first.counters.step == stop_after
    second = trainer(tmp_path)
    second.resume()
    resumed = list(second.run())
    assert equal(states(whole.model), states(second.model))
    assert equal(whole.state.best, second.state.best)
    assert told(resumed)[-1] == told(events)[-1]


def told(events: list[Event]) -> list[dict[str, Any]]:
    timing = ("seconds", "images_per_s")
    return [
        {k: v for k, v in event.values.items() if k not in timing}
        for event in events
        if event.kind == "epoch"
    ]


def test_batches_cover_the_epoch_once_and_differ_by_one_image_at_most() -> None:
    subject = trainer(batch_size=16)
    sizes, labels = [], []
    for position in range(subject.per_epoch):
        batch = subject._batch(0, position, position)
        sizes.append(len(batch.x))
        labels.append(batch.y)
    assert sorted(torch.cat(labels).tolist()) == sorted(subject.train.y.tolist())
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= 16


def test_files_of_a_finished_run(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    list(subject.run())
    fresh = Convolutional()
    checkpoint.load_weights(fresh, tmp_path / "last.safetensors")
    assert equal(states(fresh), states(subject.model))
    checkpoint.load_weights(fresh, tmp_path / "best.safetensors")
    assert equal(states(fresh), subject.state.best)
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    assert not list(tmp_path.glob("*.part"))


def test_epoch_means_weigh_every_image_alike() -> None:
    """The mean of batch means would be wrong: batches are of 12 and 13 images."""

    @dataclass(frozen=True, kw_only=True)
    class Label(Defence):
        passes = "clean"

        def terms(self, clean: Tensor, adv: None, labels: Tensor, **context: Any) -> Terms:
            return Terms(labels.to(clean) + 0 * clean.sum(1))

    subject = trainer()
    subject.defence = Label()
    epoch = next(e for e in subject.run() if e.kind == "epoch")
    assert epoch.values["loss"] == pytest.approx(float(subject.train.y.double().mean()), rel=1e-6)


def test_training_learns() -> None:
    subject = trainer(epochs=12)
    epochs = [e.values for e in subject.run() if e.kind == "epoch"]
    assert epochs[-1]["loss"] < 0.7 * epochs[0]["loss"]
    assert max(e["val_robust"] for e in epochs) == subject.counters.best
    assert [e["best"] for e in epochs].count(True) >= 1


@dataclass(frozen=True, kw_only=True)
class Explodes(Defence):
    """The loss is NaN from the third update on."""

    passes = "clean"

    def terms(self, clean: Tensor, adv: None, labels: Tensor, **context: Any) -> Terms:
        factor = torch.nan if context["progress"].step >= 5 else 1.0
        return Terms(clean.square().sum(1) * factor)


def test_a_nan_loss_stops_with_the_step_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    subject.defence = Explodes()
    with pytest.raises(UserError, match=r"the loss became nan at step 5 \(epoch 2\)") as caught:
        list(subject.run())
    assert "checkpoint-000000004.safetensors" in str(caught.value)
    assert all(bool(v.isfinite().all()) for v in states(subject.model).values())
    assert checkpoint.newest(tmp_path)[2]["counters"]["step"] == 4


class Probabilities(Convolutional):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Broken(Convolutional):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 0


def frozen() -> nn.Module:
    return Convolutional().requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Convolutional(classes=3), "a logit for each of the 4 classes, got 3."),
        (lambda: Convolutional(channels=3), r"cannot take images of shape \(4, 2, 8, 8\): Runtime"),
        (nn.Flatten, "the model has no parameters to train"),
        (frozen, "the model has no parameters to train; are all of them frozen?"),
        (Probabilities, "the model returns probabilities, not logits"),
        (Broken, "the model returns NaN or infinite logits"),
        (lambda: nn.Conv2d(2, 4, 3), r"must return logits of shape \(4, classes\), got \(4, 4, 6"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_the_first_step(
    make: Callable[[], nn.Module], text: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=text):
        spat.train(make(), *toy(), defence="natural", epochs=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    list(trainer(tmp_path).run())
    subject = trainer(tmp_path)
    subject.model.out = nn.Linear(8, 7)
    with pytest.raises(UserError, match="belongs to another architecture"):
        subject.resume()


def test_cosine_rows_stay_unit_after_every_step() -> None:
    model = spat.model("small-cnn", head="cosine", classes=4, channels=2, size=16)
    x, y = (torch.rand(20, 2, 16, 16), torch.arange(20) % 4)
    spat.train(
        model, x, y, defence=spat.defence("spat", **{"attack.steps": 1}), epochs=2, batch_size=8
    )
    rows = next(p for name, p in model.named_parameters() if name == "classifier.fc3.weight")
    assert torch.allclose(rows.norm(dim=1), torch.ones(4), atol=1e-6)


def test_a_cosine_loss_needs_a_cosine_head() -> None:
    x, y = toy()
    with pytest.raises(UserError, match="spat works on cosines: give the model a cosine head"):
        spat.train(Convolutional(), x, y, defence="spat", epochs=1)


def test_train_works_on_any_module_and_tensors(tmp_path: Path) -> None:
    x, y = toy()
    model, seen = Convolutional(), []
    done = spat.train(
        model, x / 255, y, defence="trades", epochs=2, batch_size=16, out=tmp_path, sink=seen.append
    )
    assert done.model is model
    assert [e.kind for e in done.events] == [e.kind for e in seen]
    assert (tmp_path / "best.safetensors").exists()
    with pytest.raises(
        UserError, match="unknown setting of training 'epoch'. Did you mean 'epochs'"
    ):
        spat.train(model, x, y, defence="trades", epoch=1)


def test_what_is_no_model_or_no_images_gets_one_sentence() -> None:
    x, y = toy()
    with pytest.raises(UserError, match="the model must be a torch.nn.Module, got function"):
        spat.train(lambda x: x, x, y)  # type: ignore[arg-type]
    for wrong, text in ((x.numpy(), "got ndarray"), (x.int(), "got torch.int32")):
        with pytest.raises(UserError, match=f"images must be a floating-point tensor.*{text}"):
            spat.train(Convolutional(), wrong, y, defence="madry")  # type: ignore[arg-type]


def test_averaging_matches_the_seat_code() -> None:
    """The sequence of the authors' EMA class: parameters, float and integer buffers."""
    case = CASES["seat.ema.sequence"]
    given, expected = case["inputs"], case["expected"]
    shadow = {
        "w": torch.tensor(given["w0"]).double(),
        "buffer": torch.tensor(given["buffer0"]).double(),
        "n": torch.tensor(given["n0"]),
    }
    defence = spat.defence("seat")
    for t in range(5):
        decay = defence.ema_decay(t)
        assert decay == pytest.approx(expected["decay"][t], rel=1e-12)
        now = {
            "w": torch.tensor(given["w_after_step"][t]).double(),
            "buffer": torch.tensor(given["buffer_after_step"][t]).double(),
            "n": torch.tensor(given["n_after_step"][t]),
        }
        average_(shadow, now, decay)
        assert float(shadow["w"]) == pytest.approx(expected["ema_w"][t], rel=1e-9)
        assert float(shadow["buffer"]) == pytest.approx(expected["ema_buffer"][t], rel=1e-9)
        assert int(shadow["n"]) == expected["ema_int_buffer"][t]


def test_what_is_handed_over_is_the_average() -> None:
    subject = trainer(ema=0.9)
    snapshots = [copied(subject.model.state_dict())]
    for event in subject.run():
        if event.kind == "epoch" and event.values["epoch"] == 2:
            assert not equal(subject.state.judged(), states(subject.model))
    slow = trainer(ema=0.0)
    shadow = snapshots[0]
    for step in range(slow.total):
        list(slow._train_one())
        average_(shadow, slow.model.state_dict(), min(0.9, (step + 1) / (step + 10)))
    assert equal(states(slow.model), states(subject.model))  # the average changes no update
    assert equal(shadow, subject.state.judged())


def test_the_average_survives_a_resume(tmp_path: Path) -> None:
    whole = trainer(ema=0.9)
    list(whole.run())
    first = trainer(tmp_path, ema=0.9)
    left = iter(range(5))
    list(first.run(stop=lambda: next(left, None) is None))
    second = trainer(tmp_path, ema=0.9)
    second.resume()
    list(second.run())
    assert equal(whole.state.judged(), second.state.judged())


def test_the_average_of_a_constant_model_is_that_constant() -> None:
    subject = trainer(ema=0.9, lr=1e-30, weight_decay=0.0)
    before = {k: v.clone() for k, v in subject.model.named_parameters()}
    list(subject.run())
    for name, value in before.items():
        assert torch.allclose(subject.state.judged()[name], value, atol=1e-7)


def test_averaged_cosine_rows_are_unit() -> None:
    model = spat.model("small-cnn", head="cosine", classes=4, channels=2, size=16)
    x, y = torch.rand(20, 2, 16, 16), torch.arange(20) % 4
    quick = spat.defence("spat", **{"attack.steps": 1})
    spat.train(model, x, y, defence=quick, epochs=2, batch_size=8, ema=0.5)
    weight = model.state_dict()["classifier.fc3.weight"]
    assert torch.allclose(weight.norm(dim=1), torch.ones(4), atol=1e-6)


def test_free_training_is_the_literal_algorithm() -> None:
    """A slow twin: the replayed loop as published, on a model without dropout."""
    x, y = toy(20)
    images = Images(x, y, ("a", "b", "c", "d"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(128, 16), nn.Tanh(), nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    eps, m = 0.1, 3
    settings = Training(
        epochs=2, batch_size=8, lr=0.1, schedule="constant", weight_decay=0.0, precision="float32"
    )
    defence = spat.defence("free", replays=m, **{"attack.eps": eps})
    subject = Trainer(model, images, None, defence, settings)
    list(subject.run())

    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    delta = torch.zeros(7, 2, 8, 8)
    for epoch in range(2):
        order = torch.randperm(20, generator=generator(0, "order", epoch))
        for index in torch.tensor_split(order, 3):
            part, labels = images.floats(index)
            for _ in range(m):
                x_adv = (part + delta[: len(part)]).clamp(0, 1).requires_grad_()
                optimiser.zero_grad()
                nn.functional.cross_entropy(twin(x_adv), labels).backward()
                optimiser.step()
                assert x_adv.grad is not None
                moved = (x_adv.detach() - part + eps * x_adv.grad.sign()).clamp(-eps, eps)
                delta[: len(part)] = (part + moved).clamp(0, 1) - part
    for name, value in twin.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-5), name
    assert subject.counters.step == 2 * 3 * m


def test_free_training_resumes_with_its_perturbation(tmp_path: Path) -> None:
    def made(folder: Path | None) -> Trainer:
        subject = trainer(folder)
        return dataclasses.replace(subject, defence=spat.defence("free", replays=2))

    whole, first, second = made(None), made(tmp_path), made(tmp_path)
    list(whole.run())
    left = iter(range(5))
    list(first.run(stop=lambda: next(left, None) is None))
    second.resume()
    list(second.run())
    assert equal(states(whole.model), states(second.model))


def test_a_loss_on_logits_refuses_bare_cosines() -> None:
    model = spat.model("small-cnn", head="cosine", classes=4, channels=2, size=16)
    x, y = torch.rand(8, 2, 16, 16), torch.arange(8) % 4
    with pytest.raises(UserError, match="trades works on logits, and bare cosines"):
        spat.train(model, x, y, defence="trades", epochs=1)


def test_a_run_shorter_than_the_warm_up_says_so() -> None:
    subject = dataclasses.replace(trainer(), defence=spat.defence("gairat"))
    note = next(iter(subject.run()))
    assert note.kind == "note"
    assert "the first 59 epochs train a plainer loss" in note.values["text"]
    assert next(iter(trainer().run())).kind != "note"


def test_modes_of_a_model_in_training() -> None:
    """A frozen BatchNorm stays frozen; a model left in eval mode is trained all the same."""
    frozen = trainer()
    frozen.model.bn2.eval()  # type: ignore[union-attr, operator]
    before = frozen.model.bn2.running_mean.clone()  # type: ignore[union-attr, operator]
    list(frozen.run())
    assert torch.equal(frozen.model.bn2.running_mean, before)  # type: ignore[union-attr, arg-type]
    asleep = trainer().model.eval()
    assert dataclasses.replace(trainer(), model=asleep).model.training


@pytest.mark.parametrize("name", ["n-fgsm", "fgsm-rs", "awp-trades", "madry"])
def test_the_best_epoch_is_chosen_at_the_eps_to_defend_against(name: str) -> None:
    """N-FGSM trains on images up to three eps away, where no epoch would hold anything."""
    subject = trainer(epochs=1)
    subject.defence = spat.defence(name, **{"attack.eps": 0.1})
    (epoch,) = [event for event in subject.run() if event.kind == "epoch"]
    assert epoch.values["val_attack"] == "pgd-10 on the margin at eps 0.1"
