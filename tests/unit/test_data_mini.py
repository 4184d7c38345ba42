"""The embedded part of MNIST."""

from importlib import resources

from spat.datasets.mnist_mini import FILE, MnistMini


def test_it_is_small():
    assert len(resources.files("spat.datasets").joinpath(FILE).read_bytes()) <= 2_500_000


def test_every_head_is_balanced():
    train, test = MnistMini().whole()
    assert (len(train), len(test)) == (15_000, 3_000)
    for images in (train, test):
        assert images.shape == (1, 28, 28)
        assert images.y.bincount().unique().tolist() == [len(images) // 10]
        assert images[:20].y.tolist() == [*range(10), *range(10)]


def test_no_image_is_there_twice():
    train, test = MnistMini().whole()
    seen = {image.numpy().tobytes() for half in (train, test) for image in half.x}
    assert len(seen) == 18_000


def test_the_pixels_are_those_of_digits():
    """A mean image tells zeros, which are hollow, from ones, which are not."""
    train, _ = MnistMini().whole()
    zero, one = (train.x[train.y == digit].float().mean(0)[0] for digit in (0, 1))
    assert zero[14, 14] < 20 < 200 < one[14, 14]


def test_splits():
    splits = MnistMini().load()
    assert (splits.name, splits.eps, splits.augment) == ("mnist-mini", 0.3, False)
    assert splits.validation.y.bincount().tolist() == [150] * 10
