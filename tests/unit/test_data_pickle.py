"""Pickled CIFAR batches are read, and nothing that a pickle names is ever run."""

import pickle
import struct
import warnings

import numpy as np
import pytest

from spat.datasets._cifar_format import from_pickle
from spat.datasets._inert_pickle import RefusedError, read_batch

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 1]


def text(value):
    return b"T" + struct.pack("<i", len(value)) + value


def python2_array(array):
    """An array as Python 2 and the numpy of its day pickled it, opcode by opcode."""
    dtype = (
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    sizes = b"".join(b"J" + struct.pack("<i", side) for side in array.shape) + b"\x86"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    return start + b"\x87R(K\x01" + sizes + dtype + b"\x89" + text(array.tobytes()) + b"tb"


def python2_batch(array, labels):
    """The keys of an official batch, in a pickle of Python 2."""
    items = [
        text(b"data") + python2_array(array),
        text(b"labels") + b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e",
        text(b"batch_label") + text(b"training batch 1 of 5"),
    ]
    return b"\x80\x02}(" + b"".join(items) + b"u."


def test_the_pickle_of_these_tests_is_a_true_one():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy has since moved its core
        held = pickle.loads(python2_batch(IMAGES, LABELS), encoding="bytes")
    assert np.array_equal(held[b"data"], IMAGES)
    assert held[b"labels"] == LABELS


def test_a_python_2_batch():
    images, labels = read_batch(python2_batch(IMAGES, LABELS))
    assert np.array_equal(images, IMAGES)
    assert labels == LABELS


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
def test_a_python_3_batch(protocol):
    images, labels = read_batch(pickle.dumps({"data": IMAGES, "labels": LABELS}, protocol))
    assert np.array_equal(images, IMAGES)
    assert labels == LABELS


def test_as_binary_records():
    rows = zip(LABELS, IMAGES, strict=True)
    expected = b"".join(bytes([label]) + image.tobytes() for label, image in rows)
    assert from_pickle(python2_batch(IMAGES, LABELS)) == expected


class Runs:
    """A pickle of this calls a function, which leaves a file behind."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_code_in_a_pickle_is_refused(tmp_path, protocol):
    trace = tmp_path / "trace"
    for hostile in (Runs(open, str(trace), "w"), Runs(eval, f"open({str(trace)!r}, 'w')")):
        whole = pickle.dumps({"data": IMAGES, "labels": LABELS, "extra": hostile}, protocol)
        with pytest.raises(RefusedError, match=r"it names .*, which is not plain data"):
            read_batch(whole)
    assert not trace.exists()


@pytest.mark.parametrize(
    "name", ["os\nsystem", "builtins\ngetattr", "numpy\nload", "_codecs\ndecode", "numpy\nf2py.sys"]
)
def test_no_other_name_is_let_through(name):
    with pytest.raises(RefusedError, match="which is not plain data"):
        read_batch(b"c" + name.encode() + b"\n.")


def test_a_codec_that_unpacks_is_refused():
    bomb = b"\x80\x02c_codecs\nencode\n" + b"X\x01\x00\x00\x00a" + b"X\x04\x00\x00\x00zlib\x86R."
    with pytest.raises(RefusedError, match="it encodes with 'zlib'"):
        read_batch(bomb)


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ([1, 2], "it holds no dict"),
        ({"data": IMAGES}, "no list of labels"),
        ({"data": IMAGES, "labels": [1, 2, 3, 256]}, "no list of labels"),
        ({"data": IMAGES, "labels": ["cat"] * 4}, "no list of labels"),
        ({"labels": LABELS}, "not an array of bytes of 4 rows"),
        ({"data": IMAGES[:3], "labels": LABELS}, "not an array of bytes of 4 rows"),
        ({"data": IMAGES.astype(np.int8), "labels": LABELS}, "not an array of bytes"),
        ({"data": np.asfortranarray(IMAGES), "labels": LABELS}, "not an array of bytes"),
        ({"data": IMAGES.tobytes(), "labels": LABELS}, "not an array of bytes"),
    ],
)
def test_other_contents_are_refused(held, reason):
    with pytest.raises(RefusedError, match=reason):
        read_batch(pickle.dumps(held, 4))


def test_every_truncation_is_refused():
    whole = python2_batch(IMAGES[:1, :8], LABELS[:1])
    for end in range(len(whole)):
        with pytest.raises(RefusedError):
            read_batch(whole[:end])
