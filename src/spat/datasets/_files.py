"""Where data lies, its checksums, and writing a file so that it is whole or absent."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from spat.errors import UserError


def data_root(given: str | None) -> Path:
    """The data folder: as given, else $SPAT_DATA, else `spat` in the user's cache folder."""
    chosen = given or os.environ.get("SPAT_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "spat"


def md5(data: bytes) -> str:
    """The published tables are MD5; here it finds damage and is no defence against a forger."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error


def write_whole(path: Path, data: bytes) -> None:
    """Write under another name in the same folder, flush to the disk, then rename."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):  # gone already where all went well
            temporary.unlink()


def cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write {path}: {error.strerror or error}; "
        "pass root=... or set SPAT_DATA to a folder you may write to."
    )
