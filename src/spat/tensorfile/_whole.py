"""Named tensors in one file: safetensors written whole or not at all, and checked when read.

The digest in the header covers every tensor's name, type, shape and bytes and the rest of the
header, so that one flipped byte is noticed. Nothing here can execute code from a file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from spat.errors import UserError


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
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise UserError(
            f"could not write {path}: {error.strerror or error}; what was there before is intact."
        ) from None
    return sha256


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a file that `write` made; refuses one that changed since."""
    with told(path), safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    text = header.get("spat", "{}")
    ours = "spat" in header or "sha256" in header  # other people's files carry no digest
    if ours and digest(tensors, text) != header.get("sha256"):
        raise altered(path)
    return tensors, json.loads(text)


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of names, types, shapes and bytes, in the order of the names."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(title(name, str(tensor.dtype), tuple(tensor.shape)))
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def title(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What a digest says of a tensor before its bytes."""
    return f"\n{name} {dtype} {shape}\n".encode()


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What cannot be read, in one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}).") from None


def altered(path: Path) -> UserError:
    return UserError(f"{path} was altered after it was written: its checksum does not match.")


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
