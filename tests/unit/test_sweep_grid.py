"""From a file to runs: every combination, names that say what varies, mistakes told by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from spat.errors import UserError
from spat.sweep.grid import Run, read


def runs(folder: Path, text: str, **flags: str) -> list[Run]:
    file = folder / "grid.toml"
    file.write_text(text)
    return read(file, flags)


def names(folder: Path, text: str, **flags: str) -> list[str]:
    return [run.name for run in runs(folder, text, **flags)]


def test_every_combination_is_a_run(tmp_path: Path) -> None:
    found = runs(
        tmp_path,
        'epochs = 3\n[grid]\nseed = [0, 1]\nlr = [0.05, 0.1]\ndefence = ["madry", "trades"]\n',
        batch_size="64",
    )
    assert len(found) == 8
    assert [run.name for run in found[:3]] == [
        "madry_lr-0.05_seed-0",
        "trades_lr-0.05_seed-0",
        "madry_lr-0.1_seed-0",
    ]
    last = found[-1]
    assert (last.name, last.group) == ("trades_lr-0.1_seed-1", "trades_lr-0.1")
    given = last.experiment
    assert (given.defence.name, given.seed) == ("trades", 1)
    assert (given.training.lr, given.training.epochs, given.training.batch_size) == (0.1, 3, 64)


def test_a_table_is_settings_that_vary_together(tmp_path: Path) -> None:
    text = '[grid]\ndefence = ["madry", { name = "trades", beta = 3, "attack.steps" = 2 }]\n'
    plain, tuned = runs(tmp_path, text)
    assert (plain.name, tuned.name) == ("madry", "trades_steps-2_beta-3")
    assert tuned.experiment.defence.settings == {"beta": 3.0, "attack.steps": 2}


def test_dotted_keys_and_tables_mean_the_same(tmp_path: Path) -> None:
    dotted = names(tmp_path, '[grid]\n"model.size" = [28, 32]\n"defence.attack.steps" = [1]\n')
    tables = names(tmp_path, "[grid.model]\nsize = [28, 32]\n[grid.defence.attack]\nsteps = [1]\n")
    assert dotted == tables == ["steps-1_size-28", "steps-1_size-32"]


def test_the_names_of_two_settings_that_end_alike_are_whole(tmp_path: Path) -> None:
    text = '[grid]\n"defence.scale" = [5]\n"model.scale" = [3]\nmodel = ["small-cnn"]\n'
    assert names(tmp_path, text) == ["small-cnn_defence.scale-5_model.scale-3"]


def test_a_recipe_may_be_given_or_vary(tmp_path: Path) -> None:
    (given,) = runs(tmp_path, 'recipe = "short-comparison"\n[grid]\ndefence = ["mail"]\n')
    assert given.experiment.defence.settings["burn_in"] == 5  # which the recipe gives to this one
    varied = names(tmp_path, '[grid]\nrecipe = ["demo", "mnist-common"]\nseed = [1]\n')
    assert varied == ["demo_seed-1", "mnist-common_seed-1"]


def test_names_suit_any_file_system(tmp_path: Path) -> None:
    text = '[grid]\neps = ["8/255"]\nattacks = [["fgsm", "pgd-20"], "cw"]\naugment = ["none"]\n'
    assert names(tmp_path, text) == [
        "attacks-fgsm+pgd-20_augment-none_eps-8-255",
        "attacks-cw_augment-none_eps-8-255",
    ]
    paths = f'["{"x" * 300}", "{"x" * 301}"]'
    long = names(tmp_path, f'data = "npz"\n[grid]\n"data.path" = {paths}\n')
    assert len(set(long)) == 2
    assert all(len(name) < 200 for name in long)


def test_values_that_are_spelled_alike_are_told_apart(tmp_path: Path) -> None:
    text = '[grid]\n"data.path" = ["a/b", "a-b"]\ndata = ["npz"]\nseed = [0, 1]\n'
    found = runs(tmp_path, text)
    assert len({run.name for run in found}) == 4
    assert len({run.group for run in found}) == 2
    assert found[0].group == found[1].group


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("epochs = 3", "has no [grid]: list there what varies, such as seed = [0, 1, 2]."),
        ("[grid]\nseed = 3", "seed in [grid] must be a list of values, got 3;"),
        ("[grid]\nseed = []", "seed in [grid] must be a list of values, got [];"),
        ("lr = 0.1\n[grid]\nlr = [0.1]", "gives lr in two places; keep one of them."),
        (
            '[grid]\ndefence = [{ name = "trades", beta = 3 }]\n"defence.beta" = [6]',
            "gives defence.beta in two places; keep one of them.",
        ),
        ("[grid]\nsede = [0]", "run sede-0: unknown setting 'sede'. Did you mean 'seed'?"),
        ('[grid]\ndefence = ["spta"]', "run spta: unknown defence 'spta'. Did you mean 'spat'?"),
        ('[grid]\nlr = ["fast"]', "run lr-fast: lr must be a number such as 0.1 or 8/255, got"),
        ("[grid]\nepochs = [2, 0]", "run epochs-0: epochs must be 1 or more, got 0."),
        ('recipe = "dmeo"\n[grid]\nseed = [0]', "run seed-0: unknown recipe 'dmeo'."),
        ("[grid\n", "is not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        runs(tmp_path, text)
    assert told in str(caught.value)
    assert "grid.toml" in str(caught.value)


def test_the_example_of_the_document(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    found = names(tmp_path, example)
    assert len(found) == len(set(found)) == 18
    assert "trades_beta-3_lr-0.05_seed-0" in found
