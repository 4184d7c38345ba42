"""What a person calls a model: a run folder, a weights file, or code that builds one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from spat import config, tensorfile
from spat.errors import UserError
from spat.experiment import load_run
from spat.models import build_model
from spat.resolve import Plan, resolve
from spat.training import checkpoint


def load_target(
    target: str, flags: Mapping[str, Any], *, weights: str = "best"
) -> tuple[Plan, nn.Module]:
    """The model a target names, and the plan to evaluate it: its own settings, flags on top.

    weights: `best` or `last` of a run folder, or a file, for a model given as code
    """
    path, file = Path(target), weights_file(target, weights)
    if path.is_dir():
        return load_planned({**config.flatten(load_run(path)), **flags}, file)
    if config.is_import_path(target):
        return load_planned({"defence": "natural", **flags, "model": target}, file)
    if not path.exists():
        raise UserError(
            f"there is no {target}: give a run folder, a weights file or package.module:factory."
        )
    return load_planned({**_settings_of(path, flags), **flags}, file)


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
    return plan, model.to(plan.device).eval()


def _settings_of(path: Path, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our weights files say what they belong to; for any other the flags must."""
    if path.suffix == ".safetensors":
        settings: Mapping[str, Any] | None = tensorfile.read(path)[1].get("settings")
        if settings is not None:
            return settings
    if "model" not in flags:
        raise UserError(f"{path} does not say which model it belongs to; give --model NAME.")
    return {"defence": "natural"}
