"""Your own image files."""

import numpy as np
import pytest
import torch
from PIL import Image

from spat.datasets.folder import Folder
from spat.errors import UserError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (2, 2, 3, 4, 5, 3), dtype=np.uint8)  # half, class, image, h, w, c


@pytest.fixture
def root(tmp_path):
    for half, part in zip(("train", "test"), PIXELS, strict=True):
        for name, images in zip(("cat", "dog"), part, strict=True):
            (tmp_path / half / name).mkdir(parents=True)
            for k, image in enumerate(images):
                Image.fromarray(image).save(tmp_path / half / name / f"{k}.png")
    return tmp_path


def test_images_and_labels(root):
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    (root / "train" / "cat" / ".0.png").write_text("hidden")
    (root / "train" / ".git").mkdir()
    splits = Folder(path=str(root)).load(validation=0.34)
    in_turn = PIXELS[1].transpose(1, 0, 4, 2, 3).reshape(6, 3, 4, 5)
    assert torch.equal(splits.test.x, torch.from_numpy(in_turn))
    assert splits.test.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert splits.test.names == ("cat", "dog")
    assert (len(splits.train), len(splits.validation)) == (4, 2)
    assert (splits.name, splits.eps, splits.augment) == (root.name, None, False)


def test_classes_of_different_sizes(root):
    (root / "test" / "cat" / "2.png").unlink()
    (root / "test" / "cat" / "1.png").unlink()
    assert Folder(path=str(root)).load().test.y.tolist() == [0, 1, 1, 1]


def test_grey(root):
    splits = Folder(path=str(root), grayscale=True).load()
    assert splits.test.shape == (1, 4, 5)
    red, green, blue = (int(v) for v in PIXELS[1, 0, 0, 0, 0])
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    assert abs(int(splits.test.x[0, 0, 0, 0]) - luma) <= 1


def test_resizing(root):
    Image.new("RGB", (9, 9)).save(root / "train" / "cat" / "9.png")
    splits = Folder(path=str(root), size=8, augment=True).load()
    assert splits.test.shape == (3, 8, 8)
    assert splits.augment


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "webp"])
@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_other_formats(root, ending, mode):
    Image.new(mode, (5, 4)).convert("RGB" if ending in ("jpg", "webp") else mode).save(
        root / "test" / "cat" / f"more.{ending}"
    )
    assert len(Folder(path=str(root)).load().test) == 7


def fails(root, text, **settings):
    with pytest.raises(UserError, match=text):
        Folder(path=str(root), **settings).load()


def test_unequal_sizes(root):
    Image.new("RGB", (9, 8)).save(root / "train" / "cat" / "9.png")
    fails(root, r"train/cat/9.png has 9x8 pixels but .*/0.png has 5x4; give size=8 to resize")


def test_a_broken_image(root):
    path = root / "test" / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:60])
    fails(root, r"test/dog/1.png is not a readable image; mend or remove it")
    path.write_bytes(b"")
    fails(root, r"test/dog/1.png is not a readable image")


def test_deep_pixels_would_be_clipped(root):
    Image.fromarray(np.full((4, 5), 60000, np.uint16)).save(root / "train" / "cat" / "9.png")
    fails(root, r"9.png has more than 8 bits a channel")


def test_missing_and_empty_folders(tmp_path):
    fails(tmp_path, r"train is not a folder; images belong in .*train/CLASS/1.png")
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "dog").mkdir()
    fails(tmp_path, r"test is not a folder")
    (tmp_path / "test" / "cat").mkdir(parents=True)
    fails(tmp_path, r"train holds no images; each needs a place like .*train/cat/1.png")


def test_no_class_folders(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    fails(tmp_path, r"train holds no class folders; images belong in .*train/CLASS/1.png")


def test_one_class(root):
    for half in ("train", "test"):
        for path in (root / half / "dog").iterdir():
            path.unlink()
        (root / half / "dog").rmdir()
    fails(root, "at least two classes, got 'cat'")


def test_an_unknown_class_in_test(root):
    (root / "test" / "emu").mkdir()
    fails(root, "test has the class 'emu', which 'train' lacks")


def test_size_must_be_positive(root):
    fails(root, "size must be 1 or more pixels, got 0", size=0)
