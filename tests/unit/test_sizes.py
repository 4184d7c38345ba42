"""Progressive resizing, and inner steps by phases, in the loop: what is trained on; resuming."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spat
from spat.defences._base import Defence, Terms
from spat.errors import UserError
from spat.training.loop import Trainer
from toys import equal, states, toy, trainer

PHASES: dict[str, Any] = {"image_scales": (0.5, 0.75, 1.0), "attack_steps": (1, 2, 3)}


def stopped(folder: Path, after: int, **settings: Any) -> Trainer:
    subject = trainer(folder, **settings)
    left = iter(range(after))
    list(subject.run(stop=lambda: next(left, None) is None))
    return subject


def seen(subject: Trainer) -> list[tuple[int, ...]]:
    """The shapes of the batches that the training passes get, step by step."""
    shapes: list[tuple[int, ...]] = []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Looks(Defence):
        def craft(self, model: nn.Module, x: Tensor, y: Tensor, **given: Any) -> Any:
            shapes.append((*x.shape[2:], self.attack.steps))
            return super().craft(model, x, y, **given)

        def terms(self, clean: Any, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
            return Terms(nn.functional.cross_entropy(adv, labels, reduction="none"))

    subject.defence = Looks(attack=subject.defence.attack)
    list(subject.run())
    return shapes


def test_images_grow_and_steps_multiply_by_phases() -> None:
    shapes = seen(trainer(epochs=3, **PHASES))
    assert shapes == [(4, 4, 1)] * 4 + [(6, 6, 2)] * 4 + [(8, 8, 3)] * 4
    at = {"image_milestones": (2, 3), "attack_milestones": (3,), "attack_steps": (1, 2)}
    shapes = seen(trainer(epochs=3, image_scales=(0.5, 0.75, 1.0), **at))
    assert shapes == [(4, 4, 1)] * 4 + [(6, 6, 1)] * 4 + [(8, 8, 2)] * 4


@pytest.mark.parametrize("stop_after", [2, 5, 8])
@pytest.mark.parametrize("exact", [False, True])
def test_a_resumed_run_is_bit_identical(tmp_path: Path, stop_after: int, exact: bool) -> None:
    """Stopped in each phase; phases that begin within an epoch; crops and mirrors, BatchNorm."""
    given = {**PHASES, "epochs": 3, "ema": 0.9, "exact": exact, "eps_ramp": 0.5}
    whole = trainer(**given)
    list(whole.run())
    stopped(tmp_path, stop_after, **given)
    second = trainer(tmp_path, **given)
    second.resume()
    list(second.run())
    assert equal(states(whole.model), states(second.model))
    assert equal(whole.state.best, second.state.best)


def test_one_scale_of_1_changes_nothing() -> None:
    plain, scaled = trainer(), trainer(image_scales=(1.0,), attack_steps=(2,))
    list(plain.run())
    list(scaled.run())
    assert equal(states(plain.model), states(scaled.model))


def test_the_fast_copy_follows_the_size() -> None:
    subject = trainer(**PHASES, precision="float32")
    model = subject.model.eval()
    for side in (4, 6, 8):
        x = torch.rand(3, 2, side, side)
        assert torch.allclose(subject.engine.attacked()(x), model(x), atol=1e-5)


def test_a_carried_perturbation_begins_anew_with_the_size() -> None:
    """Free training keeps one: the first images of each size see none of it."""
    subject = trainer(epochs=3, **PHASES)
    subject.defence = spat.defence("free", replays=2, **{"attack.eps": 0.1})
    subject.per_epoch, subject.total = 2 * subject.per_epoch, 2 * subject.total
    sides = []
    while subject.counters.step < subject.total:
        list(subject._train_one())
        carried = subject.state.carried
        assert carried is not None
        sides.append(carried.shape[-1])
        bigger = torch.zeros(13, 2, 9, 9)
        assert subject.state.carried_for(bigger) is None
    assert sides == [4] * 8 + [6] * 8 + [8] * 8


def test_validation_sees_whole_images() -> None:
    subject = trainer(image_scales=(0.5, 1.0))
    sizes: set[int] = set()
    subject.model.register_forward_hook(lambda m, given, out: sizes.add(given[0].shape[-1]))
    subject._validate()
    assert sizes == {8}


@pytest.mark.parametrize("name", ["small-cnn", "lenet5"])
def test_a_model_that_counts_pixels_is_refused(name: str, tmp_path: Path) -> None:
    x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    model = spat.model(name)
    before, out = states(model), tmp_path / "run"
    with pytest.raises(UserError) as caught:
        spat.train(model, x, y, defence="madry", epochs=3, image_scales=(0.75, 0.9, 1.0), out=out)
    text = str(caught.value)
    assert text.startswith(
        "image_scales needs a model for images of any size, and this one fails at 21x21 pixels ("
    )
    assert text.endswith("): take resnet18, say, or leave image_scales out.")
    assert "\n" not in text
    assert equal(before, states(model))
    assert not out.exists()


def test_a_residual_network_grows_its_images() -> None:
    x, y = toy(24)
    x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)  # below 8 pixels its last map is one
    model = spat.model("resnet18", channels=2, classes=4, width=0.1)
    done = spat.train(
        model,
        x,
        y,
        defence=spat.defence("trades", **{"attack.steps": 1}),
        epochs=2,
        batch_size=12,
        image_scales=(0.5, 1.0),
        augment=True,
    )
    assert [e.values["epoch"] for e in done.events if e.kind == "epoch"] == [1, 2]
