"""Your own arrays."""

import numpy as np
import pytest
import torch

from spat.datasets.npz import Npz
from spat.errors import UserError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 5, 7), dtype=np.uint8)
GREY[0, 0, :2] = 0, 255
COLOUR = RNG.integers(0, 256, (12, 3, 5, 7), dtype=np.uint8)
Y = np.arange(12) % 3


@pytest.fixture
def data(tmp_path):
    def make(**changes):
        x = changes.pop("x", GREY)
        held = {"x_train": x, "y_train": Y, "x_test": x[:6], "y_test": Y[:6]} | changes
        path = tmp_path / "mine.npz"
        np.savez(path, **{name: array for name, array in held.items() if array is not None})
        return Npz(path=str(path))

    return make


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (GREY, GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (COLOUR, COLOUR),
        (COLOUR.transpose(0, 2, 3, 1), COLOUR),
        (np.asfortranarray(COLOUR), COLOUR),
        (GREY[:, :1, :1, None], GREY[:, None, :1, :1]),
    ],
)
def test_layouts(data, x, expected):
    splits = data(x=x).load()
    assert torch.equal(splits.test.x, torch.from_numpy(expected[:6].copy()))
    assert splits.test.names == ("0", "1", "2")
    assert (splits.name, splits.eps, splits.augment) == ("mine", None, False)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_that_were_bytes_come_back(data, dtype):
    splits = data(x=(GREY.astype("float64") / 255).astype(dtype)).load()
    assert torch.equal(splits.test.x[:, 0], torch.from_numpy(GREY[:6]))


def test_other_floats_are_rounded_to_the_nearest_level(data):
    x = np.full((12, 2, 2), 0.5004 / 255)
    x[:, 0, 0] = 254.4 / 255
    splits = data(x=x).load()
    assert splits.test.x[0, 0].tolist() == [[254, 1], [1, 1]]


@pytest.mark.parametrize("kind", ["uint8", "int32", "int64"])
def test_labels_of_any_integer_and_as_a_column(data, kind):
    splits = data(y_train=Y.astype(kind), y_test=Y[:6, None].astype(kind)).load()
    assert splits.test.y.tolist() == Y[:6].tolist()
    assert splits.test.y.dtype == torch.int64


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x_train": GREY / 127.5 - 1}, r"x_train must lie in \[0, 1\], got values in \[-1, 1\]"),
        ({"x_test": GREY[:6] / 1.0}, r"x_test must lie in .*, 255\]; undo any normalisation"),
        ({"x": np.full((12, 2, 2), np.nan)}, r"got values in \[nan, nan\]"),
        ({"x": GREY.astype(int)}, "x_train must be bytes or floats in .*, got int64"),
        ({"x": GREY > 9}, "got bool"),
        ({"x": COLOUR[:, :2]}, r"1 or 3 channels in .* place, got \(12, 2, 5, 7\)"),
        ({"x": COLOUR[:, :, :, :3]}, r"in either last or second place, got \(12, 3, 5, 3\)"),
        ({"x": GREY[0]}, "y_train must have one label an image, got 12 for 5"),
        ({"y_train": Y[:11]}, "y_train must have one label an image, got 11 for 12"),
        ({"y_test": Y}, "y_test must have one label an image, got 12 for 6"),
        ({"y_train": Y - 1}, "y_train must be classes counted from 0, got -1"),
        ({"y_train": Y / 1.0}, r"y_train must be integers \[n\], got float64 \(12,\)"),
        ({"y_train": np.eye(3)[Y]}, "y_train must be integers"),
        ({"y_train": Y * 0, "y_test": Y[:6] * 0}, "at least two classes, got '0'"),
        ({"y_train": Y * 0 + 1}, "two classes, all training images are '1'"),
        ({"x_test": None}, "has no array 'x_test'; it needs x_train, y_train, x_test, y_test"),
        ({"x_test": GREY[:0], "y_test": Y[:0]}, "x_test in .* is empty; .*at least one image"),
        ({"x_test": COLOUR[:6]}, "training images are 1x5x7 but test images are 3x5x7"),
        ({"y_train": np.array([object()] * 12)}, "it is not an .npz file of plain arrays"),
    ],
)
def test_errors(data, changes, text):
    with pytest.raises(UserError, match=text):
        data(**changes).load()


def test_files_that_are_no_npz(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none.npz: No such file or directory"):
        Npz(path=str(tmp_path / "none.npz")).load()
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        Npz(path=str(tmp_path)).load()
    for name, content in (("text", b"hello"), ("empty", b""), ("zip", b"PK\3\4rest")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=r"it is not an \.npz file of plain arrays"):
            Npz(path=str(tmp_path / name)).load()
    np.save(tmp_path / "single.npy", GREY)
    with pytest.raises(UserError, match=r"it is not an \.npz file of plain arrays"):
        Npz(path=str(tmp_path / "single.npy")).load()


def test_a_pickle_in_an_npz_is_never_run(tmp_path):
    class Runs:
        def __reduce__(self):
            return (open, (str(tmp_path / "trace"), "w"))

    held = np.empty(12, dtype=object)
    held[:] = [Runs() for _ in range(12)]
    np.savez(tmp_path / "mine.npz", x_train=GREY, y_train=held, x_test=GREY, y_test=Y)
    with pytest.raises(UserError, match="plain arrays"):
        Npz(path=str(tmp_path / "mine.npz")).load()
    assert not (tmp_path / "trace").exists()
