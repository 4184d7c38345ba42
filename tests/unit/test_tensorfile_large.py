"""Files filled row by row are those of `write`; what is cut, swapped or foreign is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spat import tensorfile
from spat.errors import UserError
from spat.tensorfile import opened

LAYOUT = {"ids": ("int64", (6,)), "broken": ("bool", (6,)), "x": ("float32", (6, 1, 2, 2))}
TENSORS = {
    "ids": torch.arange(6) * 7,
    "broken": torch.arange(6) % 2 == 0,
    "x": torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)),
}


def filled(path: Path, rows: int = 6) -> tensorfile.Filling:
    filling = tensorfile.Filling(path, LAYOUT)
    for name, tensor in TENSORS.items():
        filling.arrays[name][:rows] = tensor[:rows].numpy()
    return filling


def test_a_filled_file_is_one_that_write_made(tmp_path: Path) -> None:
    """The digest too: it does not depend on which of the two wrote the file."""
    path = tmp_path / "a.safetensors"
    sha256 = filled(path).seal(np.arange(6), {"eps": 0.1})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    tensors, meta = tensorfile.read(path)
    assert meta == {"eps": 0.1}
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert sha256 == tensorfile.write(tmp_path / "b.safetensors", TENSORS, {"eps": 0.1})


def test_only_some_rows_are_kept(tmp_path: Path) -> None:
    rows = np.array([1, 2, 5])
    path = tmp_path / "a.safetensors"
    filled(path).seal(rows, {})
    tensors, _ = tensorfile.read(path)
    assert all(torch.equal(tensors[name], TENSORS[name][rows]) for name in TENSORS)


def test_what_a_killed_process_left_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    filled(path, rows=3)  # and then nothing: neither sealed nor dropped
    assert not path.exists()
    fresh = tensorfile.Filling(path, LAYOUT)
    assert fresh.arrays["ids"].tolist() == [0] * 6
    fresh.drop()
    assert list(tmp_path.iterdir()) == []


def test_rows_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spat.tensorfile._large.CHUNK", 40)
    path = tmp_path / "a.safetensors"
    sha256 = filled(path).seal(np.array([0, 3, 4, 5]), {"n": 4})
    with opened(path) as file:
        assert (file.sha256, file.meta, file.names) == (sha256, {"n": 4}, sorted(LAYOUT))
        assert file.shape("x") == (4, 1, 2, 2)
        assert torch.equal(file.rows("x", 1, 3), TENSORS["x"][3:5])
        assert torch.equal(file.whole("ids"), TENSORS["ids"][[0, 3, 4, 5]])


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    filled(path).seal(np.arange(6), {"eps": 0.1})
    whole = path.read_bytes()
    end = len(whole)
    for place in (end - 1, end - 50, end - 120):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match="altered after it was written"), opened(path):
            pass
    for length in (0, 5, 1000, end // 2, end - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="not a whole safetensors file"), opened(path):
            pass


def test_errors_of_the_reader_stay_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    filled(path).seal(np.arange(6), {})
    with pytest.raises(UserError, match="^mine$"), opened(path):
        raise UserError("mine")
    with pytest.raises(UserError, match="there is no file"), opened(tmp_path / "none"):
        pass
