"""Files are whole or as they were before; what cannot be read is told in one sentence."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spat.errors import UserError
from spat.results import read_json, write_arrays, write_json, write_text
from spat.results.files import write_new


def test_what_is_written_is_read(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True], "rows": [{"x": "é\u2028\ud800"}, {}], "empty": {}, "l": []}
    write_json(tmp_path / "deep" / "value.json", value)
    assert read_json(tmp_path / "deep" / "value.json") == value
    assert os.listdir(tmp_path / "deep") == ["value.json"]


def test_json_has_a_key_a_line_and_a_list_on_one(tmp_path: Path) -> None:
    write_json(tmp_path / "v.json", {"n": [1, 2], "rows": [{"a": 1}]})
    text = (tmp_path / "v.json").read_text()
    assert text == '{\n  "n": [1, 2],\n  "rows": [\n    {\n      "a": 1\n    }\n  ]\n}\n'


def test_numpy_values_and_paths_become_plain(tmp_path: Path) -> None:
    value = {"i": np.int64(3), "f": np.float32(0.5), "a": np.arange(2), "p": Path("x")}
    write_json(tmp_path / "v.json", value)
    assert read_json(tmp_path / "v.json") == {"i": 3, "f": 0.5, "a": [0, 1], "p": "x"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_is_refused_and_the_old_file_stays(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "v.json"
    write_json(path, {"a": 1})
    with pytest.raises(UserError, match=r"v\.json was not written: .* NaN"):
        write_json(path, {"a": bad})
    assert read_json(path) == {"a": 1}


def test_a_full_disk_leaves_the_old_file_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "v.json"
    write_text(path, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"could not write .*v\.json: No space left on device\."):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["v.json"]


def test_an_interrupt_while_moving_leaves_the_old_file_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "v.json"
    write_text(path, "old")

    def interrupted(source: Any, target: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["v.json"]


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    write_text(tmp_path / "taken", "a file")
    with pytest.raises(UserError, match="could not write"):
        write_text(tmp_path / "taken" / "v.json", "x")


def test_a_new_file_never_takes_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    assert write_new(path, "first")
    assert not write_new(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["v.txt"]


def test_a_new_file_needs_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(source: Any, target: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    path = tmp_path / "v.txt"
    assert write_new(path, "first")
    assert not write_new(path, "second")
    assert path.read_text() == "first"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": [1, 2', "no whole JSON file"),
        (b"", "no whole JSON file"),
        (b"\xff\xfe\xfa\x80", "no JSON file"),
        (b"[" * 100_000, "JSON file"),
    ],
)
def test_a_broken_file_is_named_in_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        read_json(path)
    assert "broken.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*x\.json\."):
        read_json(tmp_path / "x.json")
    with pytest.raises(UserError, match="could not read"):
        read_json(tmp_path)


def test_arrays_are_kept_under_exactly_their_name(tmp_path: Path) -> None:
    write_arrays(tmp_path / "images.out", {"x": np.arange(6).reshape(2, 3), "y": [1, 2]})
    assert os.listdir(tmp_path) == ["images.out"]
    with np.load(tmp_path / "images.out") as found:
        assert found["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert found["y"].tolist() == [1, 2]
