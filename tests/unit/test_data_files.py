"""The data folder, whole files, and the idx and CIFAR formats."""

import io
import json
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from spat.datasets import _cifar_format, _idx
from spat.datasets._files import data_root, write_whole
from spat.datasets.cifar10 import _from_npm
from spat.errors import UserError


def idx(array):
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(np.uint8).tobytes()
    )


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPAT_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data_root(None) == tmp_path / ".cache" / "spat"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root(None) == tmp_path / "cache" / "spat"
    monkeypatch.setenv("SPAT_DATA", str(tmp_path / "mine"))
    assert data_root(None) == tmp_path / "mine"
    assert data_root("~/given") == tmp_path / "given"


def test_write_whole_replaces(tmp_path):
    path = tmp_path / "new" / "file.bin"
    write_whole(path, b"old")
    with path.open("rb") as reader:
        write_whole(path, b"new bytes")
        assert reader.read() == b"old"  # whoever has it open keeps a whole file too
    assert path.read_bytes() == b"new bytes"
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spat.datasets._files.os.fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*file.bin: No space left on device; pass"):
        write_whole(path, b"new bytes")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


def test_no_write_permission(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", denied)
    with pytest.raises(UserError, match=r"cannot write .*: Permission denied; .*SPAT_DATA"):
        write_whole(tmp_path / "closed" / "file.bin", b"")


def test_idx_round_trip():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert torch.equal(_idx.decode(idx(array), "f", 3), torch.from_numpy(array))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "pixels is not an idx file of 3 dimensions.*got nothing"),
        (b"\x89PNG\r\n", "must start with the bytes 00000803, got 89504e47"),
        (idx(np.zeros(4)), "got 00000801"),
        (idx(np.zeros((2, 3, 4)))[:10], "pixels is truncated: it ends inside its header"),
        (idx(np.zeros((2, 3, 4)))[:-1], "truncated: its header promises 2x3x4 bytes, got 23"),
        (idx(np.zeros((2, 3, 4))) + b"\0", "too long: its header promises 2x3x4 bytes, got 25"),
    ],
)
def test_idx_errors(data, text):
    with pytest.raises(UserError, match=text):
        _idx.decode(data, "pixels", 3)


def records(n=3):
    """Batches of n images by hand: every byte differs from its neighbours."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    labels = [9, 0, 4][:n]
    data = b"".join(
        bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True)
    )
    return images, labels, data


def test_cifar_records():
    images, labels, data = records()
    x, y = _cifar_format.decode(data, "f")
    assert torch.equal(x, torch.from_numpy(images))
    assert y.tolist() == labels
    assert y.dtype == torch.int64


@pytest.mark.parametrize(("cut", "got"), [(slice(0, -1), "9,218"), (slice(0, 0), "0")])
def test_truncated_cifar_records(cut, got):
    with pytest.raises(UserError, match=f"batch_9 is truncated or not .* 3,073 bytes, got {got}"):
        _cifar_format.decode(records()[2][cut], "batch_9")


def png(images):
    """A picture with one image a row, pixel after pixel."""
    picture = Image.new("RGB", (1024, len(images)))
    for row, image in enumerate(images):
        for pixel in range(1024):
            colour = tuple(int(v) for v in image[:, pixel // 32, pixel % 32])
            picture.putpixel((pixel, row), colour)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def test_records_from_a_picture():
    images, labels, data = records()
    assert _cifar_format.from_png(png(images), labels) == data
    with pytest.raises(ValueError, match="a picture of 2 images has the shape"):
        _cifar_format.from_png(png(images), labels[:2])


def test_package_labels_belong_to_their_batch(monkeypatch):
    monkeypatch.setattr("spat.datasets.cifar10.BATCH", 1)
    images, _, _ = records(1)
    members = {f"data_batch_{k}.png": png(images) for k in range(1, 6)}
    members["test_batch.png"] = png(images)
    members["train_lables.json"] = json.dumps([1, 2, 3, 4, 5]).encode()
    members["test_lables.json"] = b"[7]"
    rebuilt = {file: data[0] for file, data in _from_npm(members)}
    assert rebuilt == {f"data_batch_{k}.bin": k for k in range(1, 6)} | {"test_batch.bin": 7}
