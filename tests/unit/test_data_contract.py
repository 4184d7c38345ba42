"""One battery for every data set: those made of files get small ones, the rest come along."""

import inspect

import numpy as np
import pytest
import torch
from PIL import Image

from spat import catalog
from spat.datasets import Splits
from spat.datasets._fetched import Fetched

NAMES = catalog.names("dataset")


@pytest.fixture
def build(tmp_path):
    """A data set by name, with what it needs; skips one whose files this machine lacks."""

    def make(name):
        needed = {s.name for s in catalog.settings("dataset", name) if s.default is catalog.MISSING}
        if "path" in needed:
            source = npz_file(tmp_path) if name == "npz" else image_folder(tmp_path)
            return catalog.build("dataset", name, path=str(source))
        made = catalog.build("dataset", name)
        if isinstance(made, Fetched) and any(status != "ok" for _, status in made.verify()):
            pytest.skip(f"{name} is not in {made.folder}")
        return made

    return make


def npz_file(folder):
    x = np.arange(40 * 64, dtype=np.uint64).astype(np.uint8).reshape(40, 8, 8)
    y = np.arange(40) % 4
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[:12], y_test=y[:12])
    return folder / "data.npz"


def image_folder(folder):
    for half, n in (("train", 10), ("test", 4)):
        for label, name in enumerate(("ant", "bee", "cow")):
            place = folder / half / name
            place.mkdir(parents=True)
            for k in range(n):
                Image.new("RGB", (6, 5), (label, k, len(half))).save(place / f"{k}.png")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_settings_and_summary_are_documented(name):
    assert catalog.find("dataset", name).summary.endswith(".")
    assert all(setting.help for setting in catalog.settings("dataset", name))


@pytest.mark.parametrize("name", NAMES)
def test_loading(build, name):
    data = build(name)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    splits, again = data.load(), data.load()
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(splits, Splits)
    assert splits.name
    whole = len(splits.train) + len(splits.validation)
    assert abs(len(splits.validation) - 0.1 * whole) <= splits.train.classes
    for part in ("train", "validation", "test"):
        images, twin = getattr(splits, part), getattr(again, part)
        assert torch.equal(images.x, twin.x)
        assert torch.equal(images.y, twin.y)
        assert images.x.is_contiguous()
        assert images.x.untyped_storage().nbytes() == images.x.numel()
        assert len(images.y.unique()) == images.classes


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_chooses_the_validation_images(build, name):
    data = build(name)
    one, other = (data.load(validation=0.3, seed=seed) for seed in (0, 1))
    assert torch.equal(one.test.x, other.test.x)
    assert len(one.validation) == len(other.validation)
    assert not torch.equal(one.validation.x, other.validation.x)


@pytest.mark.parametrize("name", NAMES)
def test_components_are_frozen_values(name):
    factory = catalog.find("dataset", name).factory
    given = {"path": "somewhere"} if "path" in inspect.signature(factory).parameters else {}
    assert factory(**given) == factory(**given)
    assert hash(factory(**given)) == hash(factory(**given))
