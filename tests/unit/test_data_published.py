"""Where the files of a published data set are looked for, and in what order they are fetched."""

import gzip
import pickle
import struct

import numpy as np
import pytest
import torch

from spat.datasets._files import md5
from spat.datasets._published import Published, UnavailableError, as_it_is, gunzip
from spat.datasets.cifar10 import Cifar10
from spat.datasets.mnist import Mnist
from spat.errors import UserError

FILES = {"a": b"first file", "b": b"second file"}
LITTLE = Published(
    "Little",
    "little",
    ("little", "."),
    {file: md5(data) for file, data in FILES.items()},
    {"{file}": as_it_is, "{file}.gz": gunzip},
)


class Host:
    """A source that has these files, and fails after them where it is told to."""

    def __init__(self, name, files, fails=None):
        self.name, self.files, self.fails, self.asked = name, files, fails, []

    def deliver(self, wanted, folder, report):
        self.asked.append(set(wanted))
        yield from self.files.items()
        if self.fails:
            raise UnavailableError(self.fails)


def fetch(root, *sources):
    lines = []
    LITTLE.fetch(root, sources, lambda step: lines.append(step.text))
    return lines


def place(root, name, data):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["little/{}", "{}", "little/{}.gz", "{}.gz"])
def test_every_folder_and_form_is_found(tmp_path, name):
    for file, data in FILES.items():
        place(tmp_path, name.format(file), gzip.compress(data) if "gz" in name else data)
    assert LITTLE.verify(tmp_path) == [("a", "ok"), ("b", "ok")]
    assert LITTLE.load(tmp_path, "a", bytes.upper) == b"FIRST FILE"


def test_a_local_folder_comes_first(tmp_path):
    for file, data in FILES.items():
        place(tmp_path, file, data)
    host = Host("host", FILES)
    assert fetch(tmp_path, host) == [f"Little is in {tmp_path}, verified."]
    assert host.asked == []


def test_the_first_source_that_delivers_is_the_last_asked(tmp_path):
    down, up, spare = Host("one", {}, "it is down"), Host("two", FILES), Host("three", FILES)
    lines = fetch(tmp_path, down, up, spare)
    assert lines[0] == "Little did not come from one: it is down."
    assert (len(down.asked), len(up.asked), len(spare.asked)) == (1, 1, 0)
    assert LITTLE.verify(tmp_path) == [("a", "ok"), ("b", "ok")]


def test_the_next_source_is_asked_for_the_rest(tmp_path):
    partial = Host("one", {"a": FILES["a"]}, "broke off")
    place(tmp_path, "little/b.gz.part", b"half")
    rest = Host("two", {"b": FILES["b"]})
    fetch(tmp_path, partial, rest)
    assert rest.asked == [{"b"}]
    assert sorted(p.name for p in (tmp_path / "little").iterdir()) == ["a", "b"]


def test_an_altered_file_is_replaced(tmp_path):
    place(tmp_path, "a", b"altered")
    place(tmp_path, "b.gz", gzip.compress(FILES["b"])[:-3])
    states = dict(LITTLE.verify(tmp_path))
    assert states["a"] == f"has MD5 {md5(b'altered')}, expected {md5(FILES['a'])}"
    assert "b.gz cannot be read" in states["b"]
    fetch(tmp_path, Host("host", FILES))
    assert LITTLE.verify(tmp_path) == [("a", "ok"), ("b", "ok")]


def test_what_an_altering_source_sends_is_never_kept(tmp_path):
    forger = Host("forger", FILES | {"b": b"forged"})
    with pytest.raises(UserError) as caught:
        fetch(tmp_path, forger, Host("other", {}, "it is down"))
    assert str(caught.value) == (
        f"Little could not be fetched (forger: b has MD5 {md5(b'forged')}, expected "
        f"{md5(FILES['b'])}; other: it is down); put b into {tmp_path / 'little'} yourself."
    )
    assert [p.name for p in (tmp_path / "little").iterdir()] == ["a"]


def test_no_source(tmp_path):
    with pytest.raises(UserError, match=r"\(no source was given\); put a, b into"):
        fetch(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"cannot write .*little: Not a directory; pass root=\.\.\."
    ):
        fetch(tmp_path / "file", Host("host", FILES))


def test_missing(tmp_path):
    with pytest.raises(UserError) as caught:
        Mnist(root=str(tmp_path)).load()
    assert str(caught.value) == (
        f"MNIST is not in {tmp_path} (train-images-idx3-ubyte is missing); "
        "run `spat data fetch mnist` or pass root=..."
    )
    with pytest.raises(UserError, match=r"CIFAR-10 is not in .*`spat data fetch cifar10`"):
        Cifar10(root=str(tmp_path)).load()
    assert {status for _, status in Cifar10(root=str(tmp_path)).verify()} == {"missing"}


def test_altered(tmp_path):
    place(tmp_path, "a", b"altered")
    with pytest.raises(UserError) as caught:
        LITTLE.load(tmp_path, "a", as_it_is)
    assert str(caught.value) == (
        f"a in {tmp_path} has MD5 {md5(b'altered')}, expected {md5(FILES['a'])}; "
        "run `spat data fetch little` to replace it."
    )


def idx(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """Twenty images and ten, in four of the places where MNIST may lie."""
    x = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    files = {}
    for half, part in (("train", x[:20]), ("t10k", x[20:])):
        files[f"{half}-images-idx3-ubyte"] = idx(part)
        files[f"{half}-labels-idx1-ubyte"] = idx(np.arange(len(part)) % 10)
    for (file, data), place_of in zip(
        files.items(), ["mnist/{}", "{}.gz", "MNIST/raw/{}.gz", "MNIST/raw/{}"], strict=True
    ):
        packed = gzip.compress(data) if place_of.endswith("gz") else data
        place(tmp_path, place_of.format(file), packed)
        monkeypatch.setitem(Mnist.published.files, file, md5(data))
    return x, tmp_path


def test_mnist_from_a_folder(small_mnist):
    x, root = small_mnist
    data = Mnist(root=str(root))
    assert {status for _, status in data.verify()} == {"ok"}
    splits = data.load(validation=0.5)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (10, 10, 10)
    assert torch.equal(splits.test.x[:, 0], torch.from_numpy(x[20:]))
    assert splits.test.y.tolist() == list(range(10))
    assert torch.equal(data.whole()[0].x[:, 0], torch.from_numpy(x[:20]))
    assert (splits.name, splits.eps, splits.augment) == ("mnist", 0.3, False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data[:-1], "train-images-idx3-ubyte is truncated: .* promises 20x28x28"),
        (lambda data: b"GIF8" + data[4:], "train-images-idx3-ubyte is not an idx file"),
        (lambda data: data[:-1] + b"\7", "train-images-idx3-ubyte in .* has MD5 .*, expected"),
    ],
)
def test_damaged_mnist(small_mnist, change, text):
    _, root = small_mnist
    path = root / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=text):
        Mnist(root=str(root)).load()


def test_cifar10_from_binary_and_pickles(tmp_path, monkeypatch):
    rng, images, labels = np.random.default_rng(0), {}, {}
    for number, file in enumerate(Cifar10.published.files):
        images[file] = rng.integers(0, 256, (10, 3072), dtype=np.uint8)
        labels[file] = [(k + number) % 10 for k in range(10)]
        rows = zip(labels[file], images[file], strict=True)
        binary = b"".join(bytes([label]) + row.tobytes() for label, row in rows)
        monkeypatch.setitem(Cifar10.published.files, file, md5(binary))
        if number % 2:
            place(tmp_path, f"cifar-10-batches-bin/{file}", binary)
        else:
            held = pickle.dumps({"data": images[file], "labels": labels[file]}, 2)
            place(tmp_path, f"cifar-10-batches-py/{file.removesuffix('.bin')}", held)
    splits = Cifar10(root=str(tmp_path)).load(validation=0.2)
    test = images["test_batch.bin"].reshape(10, 3, 32, 32)
    assert torch.equal(splits.test.x, torch.from_numpy(test))
    assert splits.test.y.tolist() == labels["test_batch.bin"]
    assert (len(splits.train), len(splits.validation)) == (40, 10)
    assert (splits.name, splits.eps, splits.augment) == ("cifar10", 8 / 255, True)
    train, _ = Cifar10(root=str(tmp_path)).whole()
    assert train.y[10:20].tolist() == labels["data_batch_2.bin"]


def test_a_hostile_pickle_is_one_sentence(tmp_path):
    place(tmp_path, "data_batch_1", b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"data_batch_1 cannot be read: it names os.system, which"):
        Cifar10(root=str(tmp_path)).load()
