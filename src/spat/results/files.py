"""Files that are whole or absent: text, arrays, and JSON that people can read too."""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spat.errors import UserError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is either whole or as it was before, whatever happens in between."""
    with _finished(path, content) as temporary:
        os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """An .npz file under exactly this name."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict(arrays))
    write_bytes(path, buffer.getvalue())


def write_new(path: Path, text: str) -> bool:
    """Write a file of a new name; False where one has it, even one that appeared a moment ago."""
    with _finished(path, text.encode("utf-8")) as temporary:
        return _linked(temporary, path)


def write_json(path: Path, value: Any) -> None:
    write_text(path, as_json(path, value))


def as_json(path: Path, value: Any) -> str:
    """JSON with a key a line and a list of numbers on one line; `path` is for the error."""
    try:
        return _pretty(value) + "\n"
    except ValueError:
        raise UserError(
            f"{path} was not written: it would hold NaN or infinity, which JSON does not know."
        ) from None


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror}.") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is no whole JSON file (line {error.lineno}: {error.msg}): "
            "it was cut short or is something else."
        ) from None
    except (ValueError, RecursionError):  # bytes that are no text; brackets without end
        raise UserError(f"{path} is no JSON file: it is something else.") from None


@contextlib.contextmanager
def _finished(path: Path, content: bytes) -> Iterator[Path]:
    """A finished file beside `path`, which the caller moves into place; no trace of it is left."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_through(temporary, content)
        yield temporary
        _sync_folder(path.parent)
    except OSError as error:
        raise UserError(f"could not write {path}: {error.strerror}.") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_through(path: Path, content: bytes) -> None:
    """To the disk, not only to its cache: a name must never come to stand for an empty file."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _linked(temporary: Path, path: Path) -> bool:
    """Give a file a second name without ever taking it from another, which a rename would."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links, where two writers at once could collide
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _pretty(value: Any, indent: str = "") -> str:
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        rows = [f"{inner}{json.dumps(str(k))}: {_pretty(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        rows = [inner + _pretty(item, inner) for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's; a path as text."""
    return value.tolist() if hasattr(value, "tolist") else os.fspath(value)
