"""What a person calls a model: a run folder, a weights file, or code that builds one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from spat import config, tensorfile
from spat.errors import UserError
from spat.experiment import load_run
from spat.models import answer, build_model
from spat.resolve import Plan, resolve
from spat.training import checkpoint


def load_target(
    target: str, flags: Mapping[str, Any], *, weights: str = "best"
) -> tuple[Plan, nn.Module]:
    """The model a target names, and the plan to evaluate it: its own settings, flags on top.

    weights: `best` or `last` of a run folder, or a file, for a model given as code
    """
    own = target_settings(target, flags)
    chosen = {"model": target} if config.is_import_path(target) else {}
    return load_planned(config.overlaid(own, {**flags, **chosen}), weights_file(target, weights))


def load_together(
    targets: Sequence[str], flags: Mapping[str, Any]
) -> tuple[Plan, dict[str, nn.Module]]:
    """Models that are to see the same images under the same threat, and the plan of the first.

    targets: each as in `load_target`; `runs/a@last` or `mine.py:build@mine.pt` name the weights
    """
    parts = {name: name.partition("@")[::2] for name in targets}
    own = {name: target_settings(target, flags) for name, (target, _) in parts.items()}
    shared = _shared(own, flags)
    plans, models = [], {}
    for name, (target, weights) in parts.items():
        asked = {key: value for key, value in flags.items() if not _is_its_own(key, own[name])}
        flat = config.overlaid({**shared, **own[name]}, asked)
        plan, models[name] = load_planned(flat, weights_file(target, weights or "best"))
        plans.append(plan)
    return plans[0], models


def _is_its_own(flag: str, own: Mapping[str, Any]) -> bool:
    """A flag names the model only of a file that does not say which model it belongs to."""
    return flag.partition(".")[0] == "model" and "model" in own


def _shared(own: Mapping[str, Mapping[str, Any]], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Data and threat of those that were trained by us; a flag decides where they differ."""
    found: dict[str, tuple[str, Any]] = {}
    for name, flat in own.items():
        for key, value in flat.items():
            if key in flags or key.partition(".")[0] not in ("data", "eps", "norm"):
                continue
            first, before = found.setdefault(key, (name, value))
            if before != value:
                raise UserError(
                    f"{first} has {key} {before!r} and {name} has {value!r}: "
                    f"say which to use with --{key}."
                )
    return {key: value for key, (_, value) in found.items()}


def target_settings(target: str, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a target says of itself: all settings of a run, little of somebody else's file."""
    path = Path(target)
    if path.is_dir():
        return config.flatten(load_run(path))
    if config.is_import_path(target):
        return {"defence": "natural", "model": target}
    if not path.exists():
        raise UserError(
            f"there is no {target}: give a run folder, a weights file or package.module:factory."
        )
    return _settings_of(path, flags)


def weights_file(target: str, weights: str = "best") -> Path | None:
    """Where the weights of a target are read from; code may do without a file."""
    path, named = Path(target), weights in ("best", "last")
    if path.is_dir():
        return path / f"{weights}.safetensors" if named else Path(weights)
    if config.is_import_path(target):
        return None if named else Path(weights)
    return path


def load_planned(flat: Mapping[str, Any], weights: Path | None) -> tuple[Plan, nn.Module]:
    """The model that settings describe, with these weights, and their plan."""
    plan = resolve(config.experiment(flat))
    choice = plan.experiment.model
    model = build_model(choice.name, **choice.settings)
    if weights is not None:
        checkpoint.load_weights(model, weights)
    model.to(plan.device).eval()
    answer(model, plan.splits.test[:1].floats()[0])
    return plan, model


def _settings_of(path: Path, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our weights files say what they belong to; for any other the flags must."""
    if path.suffix == ".safetensors":
        settings: Mapping[str, Any] | None = tensorfile.read(path)[1].get("settings")
        if settings is not None:
            return settings
    if "model" not in flags:
        raise UserError(f"{path} does not say which model it belongs to; give --model NAME.")
    return {"defence": "natural"}
