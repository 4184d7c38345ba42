"""Checkpoints of a run, the newest whole one found by itself, and weights read into a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spat import tensorfile
from spat.errors import UserError
from spat.models import adapt_state


class Newest(NamedTuple):
    """A whole checkpoint, and what is wrong with each of those that are newer."""

    path: Path
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    problems: tuple[str, ...]


def paths(folder: Path) -> list[Path]:
    """The checkpoints of a run folder, whole or not, oldest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"))


def newest(folder: Path) -> Newest:
    """The newest whole checkpoint of a run folder; a damaged one gives way to the one before."""
    problems: list[str] = []
    for path in reversed(paths(folder)):
        try:
            return Newest(path, *tensorfile.read(path), tuple(problems))
        except UserError as error:
            problems.append(str(error))
    reason = problems[0] if problems else "it holds none"
    raise UserError(f"no whole checkpoint in {folder}: {reason.rstrip('.')}.")


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> Path:
    """Write a checkpoint, and only then drop others, all but the one before it.

    Two are kept, so that a damaged newest one costs an interval and not the run. Any of a later
    step is a damaged one that the run went on without.
    """
    path = folder / f"checkpoint-{step:09d}.safetensors"
    tensorfile.write(path, tensors, meta)
    before = [other for other in paths(folder) if other < path][-1:]
    for other in paths(folder):
        if other not in (path, *before):
            other.unlink(missing_ok=True)
    return path


def load_weights(model: nn.Module, path: Path) -> dict[str, Any]:
    """Load weights into a model: our safetensors, or a public `.pt` of tensors only."""
    state, meta = (
        tensorfile.read(path) if path.suffix == ".safetensors" else (_read_pickle(path), {})
    )
    state, own = adapt_state(state), model.state_dict()
    missing = sorted(own.keys() - state.keys())
    foreign = sorted(state.keys() - own.keys())
    if missing or foreign:
        detail = f"it lacks {missing[0]!r}" if missing else f"it has {foreign[0]!r} besides"
        raise UserError(f"{path} belongs to another architecture: {detail}.")
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise UserError(
                f"{path} belongs to another architecture: {name!r} has shape "
                f"{tuple(state[name].shape)}, the model's has {tuple(tensor.shape)}."
            )
    model.load_state_dict(state)
    return meta


def _read_pickle(path: Path) -> dict[str, Any]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}.") from None
    except Exception as error:  # torch raises many types for a foreign or unsafe file
        raise UserError(
            f"{path} is not a checkpoint of tensors only: what was saved must be "
            "model.state_dict(), and whole."
        ) from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{path} does not hold a state dict of tensors.")
    return state
