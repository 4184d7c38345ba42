"""Images in the page are the images: decoded back, byte for byte."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from spat.reporting.pictures import Picture, difference, grid, pixels, png

RNG = np.random.default_rng(0)
Array = NDArray[np.floating]


def picture(clean: Array, adversarial: Array, *, says: tuple[str, str] = ("7", "3")) -> Picture:
    return Picture(clean, adversarial, "7", *says, "pgd-40")


def embedded(page: str) -> list[NDArray[np.uint8]]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_decode_to_their_bytes(channels: int) -> None:
    original = RNG.integers(0, 256, (channels, 5, 4), np.uint8)
    changed = RNG.integers(0, 256, (channels, 5, 4), np.uint8)
    one = picture((original / 255).astype(np.float32), (changed / 255).astype(np.float32))
    clean, adversarial, _ = embedded(grid([one]))
    shape = (5, 4) if channels == 1 else (5, 4, 3)
    assert (clean == original.transpose(1, 2, 0).reshape(shape)).all()
    assert (adversarial == changed.transpose(1, 2, 0).reshape(shape)).all()


def test_the_difference_is_grey_plus_gain_times_change() -> None:
    clean = np.array([[[0.5, 0.5, 0.5]]])
    adversarial = np.array([[[0.5, 0.75, 0.375]]])
    shown, gain = difference(clean, adversarial)
    assert gain == 2.0
    assert shown.tolist() == [[[0.5, 1.0, 0.25]]]
    assert "\u00d72<" in grid([picture(clean, adversarial)])
    assert embedded(grid([picture(clean, adversarial)]))[2].tolist() == [[128, 255, 64]]


def test_no_difference_is_grey_all_over() -> None:
    clean = RNG.random((1, 2, 2))
    shown, gain = difference(clean, clean.copy())
    assert gain == 1.0
    assert (shown == 0.5).all()


def test_values_outside_the_range_and_nan_are_still_shown() -> None:
    odd = np.array([[[-1.0, 2.0, np.nan, 0.2]]])
    assert pixels(odd).tolist() == [[0, 255, 0, 51]]
    shown, _ = difference(np.zeros_like(odd), odd)
    assert np.isfinite(shown).all()


def test_other_channels_are_averaged() -> None:
    two = np.stack([np.zeros((2, 3)), np.ones((2, 3))])
    assert pixels(two).tolist() == [[128] * 3] * 2


def test_the_same_image_is_the_same_file() -> None:
    image = RNG.random((3, 8, 8))
    assert png(image) == png(image.copy())


@pytest.mark.parametrize(
    ("says", "verdict"),
    [(("7", "3"), "fooled"), (("7", "7"), "held"), (("3", "3"), "wrong before")],
)
def test_a_picture_says_how_it_ended(says: tuple[str, str], verdict: str) -> None:
    shown = grid([picture(np.zeros((1, 2, 2)), np.ones((1, 2, 2)), says=says)])
    assert f">{verdict}</span>" in shown
    assert f"says {says[0]}" in shown
    assert f"says {says[1]}" in shown


def test_names_are_escaped_in_texts_and_attributes() -> None:
    black = np.zeros((1, 2, 2))
    shown = grid([Picture(black, black, "<b>", '"x"', "<i>", "a&b")])
    assert "<b>label &lt;b&gt;</b>" in shown
    assert "&quot;x&quot;" in shown
    assert "<i>" not in shown
    assert "a&amp;b" in shown
