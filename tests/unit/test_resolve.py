"""What is filled in: budgets, heads, sizes and presets that follow from the data and the model."""

from __future__ import annotations

from typing import Any

import pytest

from spat import config
from spat.errors import UserError
from spat.resolve import find_device, resolve


def plan(**flat: Any) -> Any:
    return resolve(config.experiment({key.replace("__", "."): v for key, v in flat.items()}))


def test_the_data_set_gives_budget_classes_and_size() -> None:
    made = plan()
    assert made.eps == 0.3
    assert made.flat["model.classes"] == 10
    assert made.flat["model.channels"] == 1
    assert made.flat["model.size"] == 28
    assert made.flat["augment"] == "none"


def test_the_inner_attack_has_the_budget_and_keeps_its_share_of_a_step() -> None:
    attack = plan(defence="spat").defence.attack
    assert attack.eps == 0.3
    assert attack.step_size == pytest.approx(0.3 / 4)  # 2/255 of 8/255
    own = plan(**{"defence.attack.eps": 0.1, "defence.attack.step_size": 0.02}).defence.attack
    assert (own.eps, own.step_size) == (0.1, 0.02)
    official = plan(defence="spat-official").defence.attack
    assert (official.eps, official.step_size) == (0.031, 0.007)


def test_the_norm_is_one_for_training_and_evaluation() -> None:
    made = plan(norm="l2", eps=1.5)
    assert made.defence.attack.norm == made.experiment.norm == "l2"


def test_a_cosine_loss_gets_a_cosine_head_of_its_scale() -> None:
    made = plan(defence="spat", **{"defence.scale": 7})
    assert made.flat["model.head"] == "cosine"
    assert made.flat["model.scale"] == 7.0
    assert plan(defence="spat-official").flat["model.head_bias"] is True
    assert plan(defence="trades").flat["model.head"] == "linear"


def test_the_paper_preset_knows_wide_networks() -> None:
    """s = 5, and 9 for WRN."""
    assert plan(defence="spat-paper").defence.scale == 5.0
    wide = plan(defence="spat-paper", model="wrn-16-4")
    assert wide.flat["defence"] == "spat-paper-wrn"
    assert wide.defence.scale == wide.flat["model.scale"] == 9.0


def test_what_was_resolved_resolves_to_itself() -> None:
    made = plan(defence="spat-paper", model="wrn-16-4", seed=3)
    again = resolve(config.experiment(made.flat))
    assert again.flat == made.flat
    assert again.defence == made.defence


def test_data_without_a_usual_budget_asks_for_one(tmp_path: Any) -> None:
    import numpy as np

    x, y = np.zeros((20, 8, 8, 1), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(UserError, match="'npz' has no usual budget: give one, --eps 8/255"):
        plan(data="npz", **{"data.path": str(tmp_path / "own.npz")})


def test_what_is_only_used_after_training_is_refused_before_it() -> None:
    with pytest.raises(UserError, match="unknown attack 'pdg'. Did you mean 'pgd'"):
        plan(attacks="fgsm pdg")
    with pytest.raises(UserError, match="eps of an evaluation must be above 0, got 0."):
        plan(eps=0)


def test_oblong_images_need_a_model_that_takes_them(tmp_path: Any) -> None:
    import numpy as np

    x, y = np.zeros((20, 16, 20, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    given = {"data": "npz", "data.path": str(tmp_path / "own.npz"), "eps": 0.1}
    text = "small-cnn takes square images, got 16 x 20 pixels; resnet18 takes images of any size."
    with pytest.raises(UserError, match=text):
        plan(**given)
    assert plan(**given, model="resnet18").flat["model.channels"] == 3


@pytest.mark.parametrize("name", ["gpu", "cuda:x"])
def test_a_wrong_device_gets_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match="device must be auto, cpu or cuda"):
        find_device(name)
