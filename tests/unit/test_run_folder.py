"""A run folder: one process at a time, never overwritten, and free again however a run ended."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spat.errors import UserError
from spat.folder import LOCK, claimed, locked

posix = pytest.mark.skipif(os.name != "posix", reason="locks and permissions as POSIX has them")


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder until it is killed."""
    code = (
        "import pathlib, sys, time\n"
        "from spat.folder import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    words = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@posix
def test_a_folder_in_use_is_refused_and_that_of_a_killed_process_taken_over(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        for resume in (True, False):
            with (
                pytest.raises(UserError, match=f"is in use by process {process.pid} on .*; wait"),
                claimed(tmp_path, resume=resume),
            ):
                pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / LOCK).exists()
        with claimed(tmp_path, resume=False):
            assert f"process {os.getpid()} on " in (tmp_path / LOCK).read_text()
    assert not (tmp_path / LOCK).exists()


def test_a_lock_goes_with_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()


@posix
def test_one_process_does_not_lock_twice(tmp_path: Path) -> None:
    with locked(tmp_path):
        with (
            pytest.raises(UserError, match=f"in use by process {os.getpid()} on"),
            locked(tmp_path),
        ):
            pass
        assert (tmp_path / LOCK).exists()  # the refused one took nothing away


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with (
        pytest.raises(UserError, match="already exists; choose another --out, or go on with"),
        claimed(tmp_path, resume=False),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with (
        pytest.raises(UserError, match=r"thesis\.txt already exists"),
        claimed(tmp_path / "thesis.txt", resume=False),
    ):
        pass


def test_leftovers_of_a_killed_start_do_not_count(tmp_path: Path) -> None:
    """Killed before its settings were written, a run can be started once more in its folder."""
    (tmp_path / LOCK).write_text("process 1 on elsewhere")
    (tmp_path / ".settings.json.12345678.part").write_text("{")
    with claimed(tmp_path, resume=False):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@posix
def test_a_folder_that_cannot_be_written_gets_one_sentence(tmp_path: Path) -> None:
    with read_only(tmp_path):
        with (
            pytest.raises(UserError, match="could not make the folder .*: Permission denied"),
            claimed(tmp_path / "new", resume=False),
        ):
            pass
        with (
            pytest.raises(UserError, match=r"could not write .*run\.lock: Permission denied"),
            claimed(tmp_path, resume=True),
        ):
            pass


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Also for root, whom permissions do not stop: for a while this process is somebody else."""
    mode, is_root = stat.S_IMODE(folder.stat().st_mode), os.geteuid() == 0
    parents = {path: path.stat().st_mode for path in folder.parents if not path.stat().st_mode & 1}
    for path in parents:
        path.chmod(0o711)
    folder.chmod(0o555)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(mode)
        for path, before in parents.items():
            path.chmod(stat.S_IMODE(before))
