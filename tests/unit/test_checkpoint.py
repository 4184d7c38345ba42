"""Checkpoints: whole or not there, noticed when altered, and never executed."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from spat import tensorfile
from spat.errors import UserError
from spat.training import checkpoint

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "n": torch.tensor(3),
    "h": torch.ones(2).bfloat16(),
}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "w.safetensors"
    tensorfile.write(path, TENSORS, {"step": 3})
    tensors, meta = tensorfile.read(path)
    assert meta == {"step": 3}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)
    assert [p.name for p in path.parent.iterdir()] == ["w.safetensors"]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    """Of the header (which holds step and settings) and of the tensors."""
    path = tmp_path / "w.safetensors"
    tensorfile.write(path, TENSORS, {"step": 3})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            tensors, meta = tensorfile.read(path)
        except UserError as error:
            assert "\n" not in str(error)
            assert "w.safetensors" in str(error)
        else:  # a byte that carries nothing
            assert meta == {"step": 3}
            assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_truncated_file_gets_one_sentence(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "w.safetensors"
    tensorfile.write(path, TENSORS, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"w\.safetensors is not a whole safetensors file"):
        tensorfile.read(path)


def test_the_newest_whole_one_is_found_and_older_ones_go(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        checkpoint.save_checkpoint(tmp_path, step, TENSORS, {"step": step})
    names = [f"checkpoint-{step:09d}.safetensors" for step in (10, 15)]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert checkpoint.newest(tmp_path)[2] == {"step": 15}
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:-3])
    assert checkpoint.newest(tmp_path)[2] == {"step": 10}


def test_no_whole_checkpoint_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no whole checkpoint in .*: it holds none"):
        checkpoint.newest(tmp_path)
    (tmp_path / "checkpoint-000000001.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match="no whole checkpoint in .*is not a whole safetensors"):
        checkpoint.newest(tmp_path)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    tensorfile.write(path, TENSORS, {"step": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; what was there before is intact"):
        tensorfile.write(path, TENSORS, {"step": 2})
    assert tensorfile.read(path)[1] == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    tensorfile.write(path, nn.Linear(3, 2).state_dict(), {})
    checkpoint.load_weights(nn.Linear(3, 2), path)
    with pytest.raises(UserError, match=r"'weight' has shape \(2, 3\), the model's has \(4, 3\)"):
        checkpoint.load_weights(nn.Linear(3, 4), path)
    with pytest.raises(UserError, match=r"another architecture: it has 'bias' besides"):
        checkpoint.load_weights(nn.Linear(3, 2, bias=False), path)
    with pytest.raises(UserError, match=r"another architecture: it lacks '0\.bias'"):
        checkpoint.load_weights(nn.Sequential(nn.Linear(3, 2)), path)


def test_public_pickles_load_only_as_tensors(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "a.pt"
    )
    other = nn.Linear(3, 2)
    checkpoint.load_weights(other, tmp_path / "a.pt")
    assert torch.equal(other.weight, model.weight)

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "executed"),))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="is not a checkpoint of tensors only"):
        checkpoint.load_weights(other, tmp_path / "evil.pt")
    assert not (tmp_path / "executed").exists()
    with pytest.raises(UserError, match="there is no checkpoint"):
        checkpoint.load_weights(other, tmp_path / "none.pt")
