"""Images, splits of them, and holding out validation images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spat.datasets import Images, Splits, carve
from spat.datasets._images import split
from spat.errors import UserError

NAMES = ("cat", "dog", "eel")


def numbered(labels, names=NAMES):
    """Images whose four pixels spell their index, so that any of them can be recognised."""
    n = len(labels)
    index = torch.arange(n)
    x = torch.stack([index // 256, index % 256], 1).to(torch.uint8)
    return Images(x.repeat(1, 2).view(n, 1, 2, 2), torch.tensor(labels), names)


def indices(images):
    return (images.x[:, 0, 0, 0].long() * 256 + images.x[:, 0, 0, 1].long()).tolist()


def test_sizes_and_parts():
    images = numbered([0, 1, 2, 1])
    assert (len(images), images.classes, images.shape) == (4, 3, (1, 2, 2))
    assert indices(images[torch.tensor([3, 1])]) == [3, 1]
    assert images[torch.tensor([3, 0])].y.tolist() == [1, 0]
    assert indices(images[1:3]) == [1, 2]
    assert indices(images[torch.tensor([True, False, False, True])]) == [0, 3]
    assert images.to("cpu").x.device.type == "cpu"


def test_floats_are_the_bytes_over_255():
    x = torch.arange(256, dtype=torch.uint8).view(64, 1, 2, 2)
    images = Images(x, torch.arange(64) % 3, NAMES)
    whole, labels = images.floats()
    assert whole.dtype == torch.float32
    assert whole.flatten().tolist() == [torch.tensor(v / 255).item() for v in range(256)]
    assert torch.equal((whole * 255).round().to(torch.uint8), x)
    index = torch.tensor([5, 2, 5])
    some, some_labels = images.floats(index)
    assert torch.equal(some, whole[index])
    assert torch.equal(some_labels, labels[index])


def test_floats_leave_the_bytes_alone():
    images = numbered([0, 1, 2])
    before = images.x.clone()
    images.floats()[0].zero_()
    images.floats(torch.tensor([0]))[0].zero_()
    assert torch.equal(images.x, before)


@pytest.mark.parametrize(
    ("x", "y", "names", "text"),
    [
        (torch.zeros(2, 1, 2, 2).double(), [0, 1], NAMES, "images must be uint8, or float32"),
        (torch.full((2, 1, 2, 2), 1.5), [0, 1], NAMES, r"images must lie in \[0, 1\]"),
        (torch.zeros(2, 2, 2, dtype=torch.uint8), [0, 1], NAMES, r"got uint8 \(2, 2, 2\)"),
        (torch.zeros(0, 1, 2, 2, dtype=torch.uint8), [], NAMES, "at least one image"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), [0, 0], ("cat",), "two classes, got 'cat'"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), [0, 0], (), "two classes, got none"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), [0, 3], NAMES, "lie in 0 to 2, got 3"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), [-1, 0], NAMES, "lie in 0 to 2, got -1"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), [0], NAMES, "one label an image, got 1 for 2"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), [0.0, 1.0], NAMES, "int64.*got float32"),
    ],
)
def test_images_are_checked(x, y, names, text):
    with pytest.raises(UserError, match=text):
        Images(x, torch.tensor(y), names)


def test_splits_must_agree():
    train, test = numbered([0, 1, 2] * 4), numbered([0, 1])
    wide = Images(torch.zeros(2, 3, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]), NAMES)
    with pytest.raises(UserError, match="training images are 1x2x2 but test images are 3x2x2"):
        Splits(train, test, wide, "pets")
    with pytest.raises(UserError, match="training and validation images must have the same class"):
        Splits(train, numbered([0], ("a", "b")), test, "pets")
    with pytest.raises(UserError, match="two classes, all training images are 'dog'"):
        Splits(numbered([1, 1]), test, test, "pets")
    splits = Splits(train, test, test, "pets").to("cpu")
    assert (splits.eps, splits.augment, len(splits.train)) == (None, False, 12)


@settings(deadline=None, max_examples=60)
@given(
    labels=st.lists(st.integers(0, 2), min_size=2, max_size=80),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
)
def test_carve_is_a_balanced_partition(labels, fraction, seed):
    images = numbered(labels)
    if max(labels.count(label) for label in range(3)) < 2:
        with pytest.raises(UserError, match="no class has two training images"):
            carve(images, fraction, seed)
        return
    train, held = carve(images, fraction, seed)
    assert sorted(indices(train) + indices(held)) == list(range(len(labels)))
    for part in (train, held):
        assert indices(part) == sorted(indices(part))
        assert part.y.tolist() == [labels[i] for i in indices(part)]
    for label in range(3):
        have, out = labels.count(label), held.y.tolist().count(label)
        assert out == 0 if have < 2 else 1 <= out <= have - 1
        assert abs(out - have * fraction) <= 0.5 or out in (0, 1, have - 1)


def test_carve_depends_on_the_seed_alone():
    images = numbered([0, 1, 2] * 30)
    first, again, other = (indices(carve(images, 0.2, seed)[1]) for seed in (7, 7, 8))
    assert first == again != other
    torch.manual_seed(0)
    state = torch.get_rng_state()
    carve(images, 0.2, 7)
    assert torch.equal(torch.get_rng_state(), state)


def test_carve_draws_within_a_class_at_random():
    images = numbered([0] * 300 + [1] * 300)
    held = indices(carve(images, 0.5, 0)[1])
    assert 50 < sum(i < 150 for i in held) < 100
    assert held[:150] != list(range(150))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_carve_refuses_a_share_outside_0_to_1(fraction):
    with pytest.raises(UserError, match=r"validation must be a share .* got"):
        carve(numbered([0, 1] * 5), fraction, 0)


def test_split_takes_validation_from_the_training_images():
    splits = split(numbered([0, 1] * 10), numbered([1, 0]), validation=0.2, seed=0, name="pets")
    assert len(splits.validation) == 4
    assert sorted(indices(splits.train) + indices(splits.validation)) == list(range(20))
    assert indices(splits.test) == [0, 1]


def test_floats_are_kept_as_they_are():
    x = torch.rand(2, 1, 2, 2)
    images = Images(x, torch.tensor([0, 1]), NAMES)
    assert torch.equal(images.floats()[0], x)
    assert torch.equal(images.floats(torch.tensor([1]))[0], x[1:])


def test_no_validation_keeps_every_image():
    splits = split(numbered([0, 1, 2] * 4), numbered([0, 1]), validation=0, seed=0, name="pets")
    assert splits.validation is None
    assert len(splits.train) == 12
    assert splits.to("cpu").validation is None
