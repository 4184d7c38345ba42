"""Settings: reading, converting, overriding, hashing, and what wrong ones get."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spat import config
from spat.convert import convert
from spat.errors import UserError


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("8/255", float, 8 / 255),
        ("1e-3", float, 1e-3),
        (3, float, 3.0),
        ("3", int, 3),
        (3.0, int, 3),
        ("true", bool, True),
        ("no", bool, False),
        ("none", float | None, None),
        ("0.5", float | None, 0.5),
        ("75,90", tuple[int, ...], (75, 90)),
        ("pgd-20 cw", tuple[str, ...], ("pgd-20", "cw")),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("b", Literal["a", "b"], "b"),
        ("8", str, "8"),
    ],
)
def test_convert(value: object, annotation: object, expected: object) -> None:
    converted = convert(value, annotation, "name")
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "text"),
    [
        ("x", int, "n must be a whole number, got 'x'."),
        ("1.5", int, "n must be a whole number, got '1.5'."),
        ("8/0", float, "n must be a number such as 0.1 or 8/255, got '8/0'."),
        ("nan", float, "n must be a number such as 0.1 or 8/255, got 'nan'."),
        ("maybe", bool, "n must be true or false, got 'maybe'."),
        ("c", Literal["a", "b"], "n must be one of a, b, got 'c'."),
        ("1 x", tuple[int, ...], "n must be a list, each a whole number, got '1 x'."),
        (True, float, "n must be a number such as 0.1 or 8/255, got True."),
    ],
)
def test_what_cannot_be_converted(value: object, annotation: object, text: str) -> None:
    with pytest.raises(UserError) as caught:
        convert(value, annotation, "n")
    assert str(caught.value) == text


def test_toml_then_flags(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(
        'epochs = 3\nmodel = "lenet5"\neps = "8/255"\n'
        '[defence]\nname = "spat"\nscale = 7\n[defence.attack]\nsteps = 4\n'
    )
    made = config.experiment({**config.read(path), "defence.scale": "9", "lr": "0.2"})
    assert made.model.name == "lenet5"
    assert made.defence == config.Choice("spat", {"scale": 9.0, "attack.steps": 4})
    assert (made.training.epochs, made.training.lr, made.eps) == (3, 0.2, 8 / 255)


def test_a_wrong_file_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no settings file .*missing\.toml"):
        config.read(tmp_path / "missing.toml")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory\."):
        config.read(tmp_path)
    (tmp_path / "bad.toml").write_text("epochs = = 3")
    with pytest.raises(UserError, match="is not valid TOML"):
        config.read(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("flat", "text"),
    [
        ({"epoch": 3}, "unknown setting 'epoch'. Did you mean 'epochs'?"),
        ({"defence.scal": 3}, "unknown setting 'defence.scal'. Did you mean 'defence.scale'?"),
        ({"epochs": 0}, "epochs must be 1 or more, got 0."),
        ({"n": 0}, "n must be 1 or more, got 0."),
        ({"n": -5}, "n must be 1 or more, got -5."),
        ({"lr": -1}, "lr must be positive, got -1."),
        ({"weight_decay": -1}, "weight_decay must be 0 or more, got -1."),
        ({"warmup": -0.5}, "warmup must be 0 or more, got -0.5."),
        ({"validation_images": 0}, "validation_images must be 1 or more, got 0."),
        ({"milestones": [90, 75]}, "milestones must be epochs from 1 in rising order, got [90, 75"),
        ({"milestones": [0]}, "milestones must be epochs from 1 in rising order, got [0]."),
        ({"model": 18}, "model must be the name of a model, see `spat list`, got 18."),
        ({"validation": 1}, "validation must lie in [0, 1), got 1."),
        ({"schedule": "cos"}, "schedule must be one of steps, linear, cosine"),
        ({"attack_steps": "1 0"}, "attack_steps must each be 1 or more, got 0."),
        ({"attack_sizes": 0}, "attack_sizes must be a list, each a number"),
        ({"attack_sizes": "0.5 0"}, "attack_sizes must each be a positive share of eps, got 0."),
        (
            {"attack_steps": "1 5 10", "attack_sizes": "0.5 0.1"},
            "attack_steps and attack_sizes must be as many, got 3 and 2.",
        ),
        (
            {"attack_steps": "1 5 10", "attack_milestones": 4},
            "attack_milestones must be a list, each a whole number, got 4.",
        ),
        (
            {"attack_steps": "1 5 10", "attack_milestones": "4"},
            "attack_steps must be one more than attack_milestones (1), got 3.",
        ),
        (
            {"attack_milestones": "4"},
            "attack_milestones say when attack_steps or attack_sizes change: give those too.",
        ),
        (
            {"epochs": 9, "attack_steps": "1 5 10", "attack_milestones": "4 4"},
            "attack_milestones must be rising epochs from 2 to 9, the last, got 4, 4.",
        ),
        (
            {"epochs": 9, "image_scales": "0.5 1", "image_milestones": "10"},
            "image_milestones must be rising epochs from 2 to 9, the last, got 10.",
        ),
        (
            {"epochs": 9, "image_scales": "0.5 1", "image_milestones": "1"},
            "image_milestones must be rising epochs from 2 to 9, the last, got 1.",
        ),
        (
            {"attack_steps": "1 5", "attack_ramp": 0.5},
            "attack_steps and attack_ramp both decide how many steps the inner attack has",
        ),
        (
            {"image_scales": "14 28"},
            "image_scales must each lie in (0, 1], shares of the images' side, got 14.",
        ),
        (
            {"image_scales": "0.5 0.75"},
            "image_scales must end with 1, got 0.75: the model is evaluated on the images as they",
        ),
        ({"data": "mnst"}, "unknown dataset 'mnst'. Did you mean 'mnist'?"),
    ],
)
def test_a_wrong_setting_gets_one_sentence(flat: dict[str, object], text: str) -> None:
    with pytest.raises(UserError) as caught:
        config.experiment(flat)
    assert str(caught.value).startswith(text)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "epochs": st.integers(1, 300),
            "lr": st.floats(1e-6, 10),
            "milestones": st.sets(st.integers(1, 100)).map(sorted),
            "seed": st.integers(0, 2**31),
            "eps": st.none() | st.floats(0, 1),
            "defence.scale": st.floats(0.1, 50),
            "model": st.sampled_from(["lenet5", "resnet18", "wrn-34-10"]),
        },
    )
)
def test_flat_settings_survive_a_round_trip(flat: dict[str, object]) -> None:
    once = config.experiment(flat)
    again = config.experiment(config.flatten(once))
    assert again == once
    assert config.digest(config.flatten(again)) == config.digest(config.flatten(once))


def test_a_component_chosen_anew_keeps_nothing_of_the_one_before() -> None:
    below = {"lr": 0.1, "defence": "mail", "defence.base": "trades", "data.root": "here"}
    above = {"defence": "madry", "defence.attack.steps": 3}
    assert config.overlaid(below, above) == {"lr": 0.1, "data.root": "here", **above}
    same = {"defence": "mail", "defence.slope": 2.0}
    assert config.overlaid(below, same) == {**below, "defence.slope": 2.0}
    assert config.overlaid({"data.root": "here"}, {"data": "mnist"}) == {"data": "mnist"}


def test_the_hash_tells_settings_apart() -> None:
    one, other = ({"seed": 0, "lr": 0.1}, {"seed": 1, "lr": 0.1})
    assert config.digest(one) != config.digest(other)
    assert config.digest(one) == config.digest({"lr": 0.1, "seed": 0})


def test_training_and_evaluation_have_settings_of_one_name_apart(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('batch_size = 7\n[evaluation]\nbatch_size = 9\nexact = true\nwithin = "1pp"\n')
    found = config.experiment(config.read(path))
    assert (found.training.batch_size, found.training.exact) == (7, False)
    assert (found.evaluation.size, found.evaluation.exact) == (9, True)
    assert found.evaluation.within == "1pp"
    assert config.experiment({"evaluation.batch_size": "auto"}).evaluation.size is None
