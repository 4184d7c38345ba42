"""A run's folder belongs to one process at a time, and never to two runs.

The lock is one that the system gives back when its owner ends, however it ends: one that a killed
process left behind is simply taken over. What the file says is for the reader of the error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spat.errors import UserError

LOCK = "run.lock"


@contextmanager
def claimed(folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold the folder of a new run, or of a stopped one, for as long as the block runs."""
    if not resume:
        make_folder(folder)
    with locked(folder):
        if not resume:
            _refuse_used(folder)  # another run may have begun and ended since
        for leftover in _leftovers(folder):
            leftover.unlink(missing_ok=True)
        yield


def make_folder(folder: Path) -> None:
    """What is new needs an empty folder: results are never overwritten."""
    try:
        _refuse_used(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"could not make the folder {folder}: {error.strerror}.") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuse where another living process holds the folder."""
    path = folder / LOCK
    try:
        handle = _acquired(path)
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
    except OSError as error:
        raise UserError(f"could not write {path}: {error.strerror}.") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _acquired(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock(handle):
            owner = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise UserError(
                f"{path.parent} is in use by {owner}; wait for it to end, or stop it first."
            )
        if _is_still(path, handle):
            return handle
        os.close(handle)  # its owner ended and removed it between our opening and our locking


def _lock(handle: int) -> bool:
    """Where the system or the file system knows no such locks, nothing is refused."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _refuse_used(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or _is_used(folder)):
        raise UserError(
            f"{folder} already exists; choose another --out, or go on with --resume {folder}."
        )


def _is_used(folder: Path) -> bool:
    """A run that was killed before it wrote its settings left nothing that counts."""
    nothing = {LOCK, *(path.name for path in _leftovers(folder))}
    return any(path.name not in nothing for path in folder.iterdir())


def _leftovers(folder: Path) -> list[Path]:
    """Files that a killed process was about to finish."""
    return list(folder.glob("*.part"))
