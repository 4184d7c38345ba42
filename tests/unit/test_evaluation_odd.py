"""Evaluations at the edges: one image, batches of one, few classes, nothing to attack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spat
from spat import catalog

AA = "aa-30"
EVERY = [
    f"{name}-30" if name in ("aa", "square") else name if name == "fgsm" else f"{name}-3"
    for name in catalog.names("attack")
]


def network(classes: int, *, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(classes)
        layers: Sequence[nn.Module] = (nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, classes))
    return nn.Sequential(nn.Flatten(), *layers[:2], nn.Dropout(dropout), layers[2]).eval()


def rightly(model: nn.Module, n: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(4))
    return x, model(x).argmax(1)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_one_image_and_batches_of_one(classes: int, norm: str, exact: bool) -> None:
    model = network(classes)
    for n in (1, 3):
        x, y = rightly(model, n)
        found = spat.evaluate(model, x, y, EVERY, eps=0.1, norm=norm, exact=exact, batch_size=1)
        assert list(found.attacks) == EVERY
        assert found.accuracy() == 1.0


def test_few_classes_are_told_of_autoattack_once() -> None:
    for classes, targets in ((2, "1 target"), (3, "2 targets")):
        model = network(classes)
        (note,) = spat.evaluate(model, *rightly(model, 2), AA, eps=0.1, exact=True).notes
        assert note == (
            f"{AA} on {classes} classes: {targets} instead of 9. "
            f"{classes} classes: the margin stands in for targeted DLR, which needs 4."
        )


@pytest.mark.parametrize("exact", [False, True])
def test_nothing_to_attack(exact: bool) -> None:
    model = network(4)
    x, y = rightly(model, 5)
    found = spat.evaluate(model, x, (y + 1) % 4, EVERY, eps=0.1, exact=exact)
    for name in EVERY:
        assert found.accuracy(name) == 0
        assert not found.attacks[name].broken.any()
        assert not found.attacks[name].distance.any()


def test_dropout_in_training_mode_changes_nothing() -> None:
    model = network(4, dropout=0.5)
    x, y = rightly(model, 30)
    before = spat.evaluate(model, x, y, AA, eps=0.1)
    after = spat.evaluate(model.train(), x, y, AA, eps=0.1)
    assert model.training
    assert 0 < before.accuracy(AA) < 1
    for name in ("predicted", "broken", "distance", "step", "stage"):
        one, other = getattr(before.attacks[AA], name), getattr(after.attacks[AA], name)
        assert np.array_equal(one, other)


def test_a_model_that_is_nan_is_refused() -> None:
    model = network(4)
    x, y = rightly(model, 3)
    nn.init.constant_(model[1].bias, torch.nan)  # type: ignore[index]
    with pytest.raises(spat.UserError, match="the model returns NaN or infinite logits"):
        spat.evaluate(model, x, y, AA, eps=0.1)
