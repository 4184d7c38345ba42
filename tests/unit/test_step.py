"""One training step as a function of a batch is what the trainer does, to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import spat
from conftest import Convolutional
from spat.config import Training
from spat.datasets import Images
from spat.errors import UserError
from spat.training.loop import Trainer

SETTINGS = {"lr": 0.05, "momentum": 0.5, "weight_decay": 1e-3}


def data() -> Images:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(23, 2, 8, 8, generator=rng)
    return Images(x, torch.randint(0, 4, (23,), generator=rng), ("a", "b", "c", "d"))


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("name", ["trades", "free"])
def test_steps_are_the_trainers(convolutional: Convolutional, name: str, exact: bool) -> None:
    """Dropout, the attack's noise and what Free carries from batch to batch included."""
    defence = spat.defence(name, **({"replays": 2} if name == "free" else {"attack.steps": 2}))
    options = Training(epochs=1, batch_size=8, schedule="constant", exact=exact, **SETTINGS)
    trainer = Trainer(copy.deepcopy(convolutional), data(), None, defence, options, seed=7)
    batches = [trainer._batch(0, i, i) for i in range(trainer.total)]
    list(trainer.run())
    step = spat.step(convolutional, defence, seed=7, exact=exact, **SETTINGS)
    losses = [step(batch.x, batch.y) for batch in batches]
    for key, value in trainer.model.state_dict().items():
        assert torch.equal(convolutional.state_dict()[key], value), key
    assert len(set(losses)) == len(losses)


def test_a_model_that_was_left_in_eval_mode_is_trained(convolutional: Convolutional) -> None:
    step = spat.step(convolutional.eval(), "madry")
    assert convolutional.training
    assert isinstance(step(*data().floats()), float)


def test_exact_leaves_the_weights_as_they_lie(convolutional: Convolutional) -> None:
    def lies_flat(weight: Tensor) -> bool:
        return weight.is_contiguous(memory_format=torch.contiguous_format)

    spat.step(convolutional, "madry", exact=True)
    assert lies_flat(convolutional.conv2.weight)
    spat.step(convolutional, "madry")
    assert not lies_flat(convolutional.conv2.weight)


def test_what_a_step_refuses(convolutional: Convolutional) -> None:
    with pytest.raises(UserError, match="spat works on cosines: give the model a cosine head"):
        spat.step(convolutional, "spat")
    with pytest.raises(UserError, match="unknown compile 'jit'"):
        spat.step(convolutional, "madry", compile="jit")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cuda-graphs need a GPU, and the model is on cpu"):
        spat.step(convolutional, "madry", compile="cuda-graphs")
    with pytest.raises(UserError, match="exact attacks the model itself: set compile to off"):
        spat.step(convolutional, "madry", exact=True, compile="inductor")
    with pytest.raises(UserError, match="unknown precision 'float16'"):
        spat.step(convolutional, "madry", precision="float16")  # type: ignore[arg-type]
