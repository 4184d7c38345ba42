"""Weights and checkpoints: safetensors written whole or not at all, and checked when read.

The digest in the header covers every tensor's name, type, shape and bytes and the rest of the
header, so that one flipped byte is noticed. Nothing here can execute code from a file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from spat.errors import UserError
from spat.models import adapt_state

KEPT = 2  # so that a damaged newest checkpoint costs one interval, not the run


def write(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> str:
    """Write tensors and JSON-able meta atomically; returns the digest."""
    whole = {  # copies, for safetensors refuses tensors that share memory
        name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()
    }
    text = json.dumps(dict(meta), sort_keys=True)
    sha256 = digest(whole, text)
    payload = save(whole, metadata={"spat": text, "sha256": sha256})
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(
            f"could not write {path}: {error.strerror or error}; what was there before is intact."
        ) from None
    return sha256


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a file that `write` made; refuses one that changed since."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}).") from None
    text = header.get("spat", "{}")
    ours = "spat" in header or "sha256" in header  # other people's files carry no digest
    if ours and digest(tensors, text) != header.get("sha256"):
        raise UserError(f"{path} was altered after it was written: its checksum does not match.")
    return tensors, json.loads(text)


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of names, types, shapes and bytes, in the order of the names."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def newest(folder: Path) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
    """The newest whole checkpoint of a run folder; a damaged one gives way to the one before."""
    problems = []
    for path in sorted(folder.glob("checkpoint-*.safetensors"), reverse=True):
        try:
            return path, *read(path)
        except UserError as error:
            problems.append(str(error))
    reason = problems[0] if problems else "it holds none"
    raise UserError(f"no whole checkpoint in {folder}: {reason.rstrip('.')}.")


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> Path:
    """Write a checkpoint and then drop the older ones: the new one is whole before any goes."""
    path = folder / f"checkpoint-{step:09d}.safetensors"
    write(path, tensors, meta)
    for old in sorted(folder.glob("checkpoint-*.safetensors"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def load_weights(model: nn.Module, path: Path) -> dict[str, Any]:
    """Load weights into a model: our safetensors, or a public `.pt` of tensors only."""
    state, meta = read(path) if path.suffix == ".safetensors" else (_read_pickle(path), {})
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
        first = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a checkpoint of tensors only ({first}).") from None
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{path} does not hold a state dict of tensors.")
    return state


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
