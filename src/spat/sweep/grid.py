"""From one file to the runs of a sweep: ordinary settings, and a list of values for what varies.

    recipe = "short-comparison"
    epochs = 3

    [grid]
    defence = ["madry", { name = "trades", beta = 3 }]
    lr = [0.05, 0.1]
    seed = [0, 1, 2]

Every combination is a run. A value that is a table is several settings that vary together.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spat import config
from spat.config import Experiment
from spat.errors import UserError

LONGEST = 120  # letters of a name; file systems take 255 bytes
Axis = list[dict[str, Any]]  # for each value in a list of the grid, the settings it stands for


@dataclass(frozen=True)
class Run:
    """One run of a sweep.

    name: from what varies, for people and for its folder
    group: what the name says without the seed: runs of one group are averaged
    """

    name: str
    group: str
    experiment: Experiment


def read(path: Path, flags: Mapping[str, Any]) -> list[Run]:
    """The runs that a file asks for, in its order; flags go on top of its settings."""
    tree = config.read_tree(path)
    axes = _axes(path, tree.pop("grid", None))
    fixed = config.overlaid(config.settings_of(tree), flags)
    _refuse_twice(path, [*axes, [fixed]])
    chosen = [_merged(values) for values in itertools.product(*axes)]
    runs = [_run(path, fixed, varied) for varied in chosen]
    return _told_apart(runs)


def _axes(path: Path, grid: Any) -> list[Axis]:
    if not isinstance(grid, Mapping) or not grid:
        raise UserError(f"{path} has no [grid]: list there what varies, such as seed = [0, 1, 2].")
    return [_axis(path, key, values) for key, values in config.settings_of(grid).items()]


def _axis(path: Path, key: str, values: Any) -> Axis:
    if not isinstance(values, list) or not values:
        raise UserError(
            f"{path}: {key} in [grid] must be a list of values, got {values!r}; "
            "a setting that does not vary stands above [grid]."
        )
    return [
        config.settings_of(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
        for value in values
    ]


def _refuse_twice(path: Path, axes: Sequence[Axis]) -> None:
    """A setting has one place in the file: which one counts would be a guess."""
    seen = Counter(key for axis in axes for key in set().union(*axis))
    twice = [key for key, count in seen.items() if count > 1]
    if twice:
        raise UserError(f"{path} gives {twice[0]} in two places; keep one of them.")


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _run(path: Path, fixed: Mapping[str, Any], varied: Mapping[str, Any]) -> Run:
    name = _name(varied)
    group = _name({key: value for key, value in varied.items() if key != "seed"})
    try:
        given = {**fixed, **varied}
        recipe = given.pop("recipe", None)
        base = config.from_recipe(str(recipe), given) if recipe is not None else {}
        return Run(name, group, config.experiment(config.overlaid(base, given)))
    except UserError as error:
        raise UserError(f"{path}, run {name}: {error}") from None


def _name(varied: Mapping[str, Any]) -> str:
    """`trades_lr-0.05_seed-0`, whatever the order of the lists in the file."""
    name = "_".join(_part(key, varied) for key in sorted(varied, key=_rank))
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}_{config.digest(varied)[:8]}"


NAMED = ("recipe", "data", "model", "defence")  # what has names of its own, which come first


def _rank(key: str) -> tuple[int, str]:
    return (NAMED.index(key) if key in NAMED else 9 if key == "seed" else 5, key)


def _part(key: str, varied: Mapping[str, Any]) -> str:
    value = _safe(varied[key])
    if key in NAMED:
        return value
    last = key.rpartition(".")[2]
    alone = sum(other.rpartition(".")[2] == last for other in varied) == 1
    return f"{last if alone else key}-{value}"


def _safe(value: Any) -> str:
    """A value in letters that any file system and any shell takes."""
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.").lower() or "none"


def _told_apart(runs: Sequence[Run]) -> list[Run]:
    """Values that are spelled alike once they are made safe get a digest of their settings."""
    alike: dict[str, set[str]] = {}
    for run in runs:
        alike.setdefault(run.name, set()).add(_mark(run))
    return [_marked(run) if len(alike[run.name]) > 1 else run for run in runs]


def _marked(run: Run) -> Run:
    return replace(run, name=f"{run.name}_{_mark(run)}", group=f"{run.group}_{_mark(run)}")


def _mark(run: Run) -> str:
    """The same for every seed, so that a group stays one."""
    return config.digest(config.flatten(replace(run.experiment, seed=0)))[:8]
