"""The real MNIST and CIFAR-10, where this machine has them."""

import importlib.util
import lzma
import pickle
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from spat.datasets import _cifar_format
from spat.datasets._files import md5
from spat.datasets.cifar10 import FILES, Cifar10
from spat.datasets.mnist import Mnist
from spat.datasets.mnist_mini import MnistMini

MAKER = Path(__file__).parents[2] / "benchmarks" / "make_mnist_mini.py"


def present(data):
    if any(status != "ok" for _, status in data.verify()):
        pytest.skip(f"{data.published.title} is not in {data.folder}")
    return data


@pytest.fixture(scope="module")
def mnist():
    return present(Mnist()).whole()


@pytest.fixture(scope="module")
def cifar10():
    return present(Cifar10()).whole()


def test_mnist(mnist):
    train, test = mnist
    assert (len(train), len(test), train.shape) == (60_000, 10_000, (1, 28, 28))
    assert train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    pixels = train.x.double() / 255
    assert round(float(pixels.mean()), 4) == 0.1307
    assert round(float(pixels.std()), 4) == 0.3081


def test_cifar10(cifar10):
    train, test = cifar10
    assert (len(train), len(test), train.shape) == (50_000, 10_000, (3, 32, 32))
    assert train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert train.y.bincount().tolist() == [5000] * 10
    assert test.y.bincount().tolist() == [1000] * 10
    counts = torch.stack([train.x[:, c].flatten().bincount(minlength=256) for c in range(3)])
    levels = torch.arange(256) / 255
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = (share * levels).sum(1)
    deviation = ((share * levels**2).sum(1) - mean**2).sqrt()
    published = torch.tensor([0.49139968, 0.48215841, 0.44653091])
    assert torch.allclose(mean.float(), published, atol=5e-8, rtol=0)
    published = torch.tensor([0.24703223, 0.24348513, 0.26158784])
    assert torch.allclose(deviation.float(), published, atol=5e-7, rtol=0)


def test_a_pickled_batch_has_the_published_checksum(cifar10):
    """The python version of a batch becomes the binary version, byte for byte."""
    _, test = cifar10
    held = {"data": test.x.flatten(1).numpy(), "labels": test.y.tolist()}
    assert md5(_cifar_format.from_pickle(pickle.dumps(held, 2))) == FILES["test_batch.bin"]


def test_a_picture_of_a_batch_has_the_published_checksum(cifar10):
    """As the npm package has it: an image a row, pixel after pixel."""
    _, test = cifar10
    buffer = BytesIO()
    rows = test.x.flatten(2).transpose(1, 2).contiguous().numpy()
    Image.fromarray(rows).save(buffer, "PNG", compress_level=1)
    data = _cifar_format.from_png(buffer.getvalue(), test.y.tolist())
    assert md5(data) == FILES["test_batch.bin"]


def positions(labels, digit, n):
    """Image k of n is the one at position k * available // n among its digit's."""
    members = [i for i, label in enumerate(labels) if label == digit]
    return [members[k * len(members) // n] for k in range(n)]


def test_the_embedded_images_are_the_stated_ones(mnist):
    for real, mini in zip(mnist, MnistMini().whole(), strict=True):
        each, labels = len(mini) // 10, real.y.tolist()
        for digit in range(10):
            stated = positions(labels, digit, each)
            assert torch.equal(mini.x[digit::10], real.x[stated])
            assert bool((mini.y[digit::10] == digit).all())


def test_the_script_that_made_the_embedded_file_makes_it_again(mnist):
    specification = importlib.util.spec_from_file_location("make_mnist_mini", MAKER)
    maker = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(maker)
    assert lzma.decompress(maker.HOME.read_bytes()) == maker.chosen(*mnist)
