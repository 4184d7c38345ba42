"""Clean, adversarial and what changed: images inside the page, pixel by pixel."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from spat.reporting.markup import escape, tag

Pixels = NDArray[np.floating]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Picture:
    """One attacked image: arrays [c, h, w] in [0, 1], and what the model takes each for."""

    clean: Pixels
    adversarial: Pixels
    label: str
    clean_prediction: str
    adversarial_prediction: str
    attack: str


def grid(pictures: Sequence[Picture]) -> str:
    return tag("div", *(_figure(picture) for picture in pictures), class_="pictures")


def difference(clean: Pixels, adversarial: Pixels) -> tuple[Pixels, float]:
    """1/2 + gain (adversarial - clean) and the gain, chosen so that the largest change just fits.

    Grey is unchanged, brighter is more, darker is less. Where nothing changed the gain is 1.
    """
    change = np.nan_to_num(np.asarray(adversarial, np.float64) - clean)
    largest = float(np.abs(change).max(initial=0.0))
    gain = 0.5 / largest if largest else 1.0
    return 0.5 + gain * change, gain


def pixels(image: Pixels) -> Bytes:
    """[h, w] or [h, w, 3] bytes of an image [c, h, w]; other channels than 1 or 3 are averaged."""
    found = np.nan_to_num(np.asarray(image, np.float64)).clip(0, 1)
    last = found.transpose(1, 2, 0) if len(found) == 3 else found.mean(0)
    return np.asarray(np.rint(255 * last), np.uint8)


def png(image: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(image)).save(buffer, "PNG")
    return buffer.getvalue()


def _figure(picture: Picture) -> str:
    changed, gain = difference(picture.clean, picture.adversarial)
    verdict = _verdict(picture)
    heading = [
        tag("b", f"label {escape(picture.label)}"),
        tag("span", escape(picture.attack)),
        tag("span", verdict, class_=f"verdict {verdict.split()[0]}"),
    ]
    return tag(
        "figure",
        tag("figcaption", *heading),
        _panel("clean", picture.clean, _says(picture.clean_prediction, picture)),
        _panel("adversarial", picture.adversarial, _says(picture.adversarial_prediction, picture)),
        _panel("difference", changed, f"\u00d7{gain:.3g}"),
    )


def _verdict(picture: Picture) -> str:
    """An image that was wrong to begin with was not fooled by the attack."""
    if picture.clean_prediction != picture.label:
        return "wrong before"
    return "held" if picture.adversarial_prediction == picture.label else "fooled"


def _panel(name: str, image: Pixels, told: str) -> str:
    source = "data:image/png;base64," + base64.b64encode(png(image)).decode()
    height, width = image.shape[-2:]
    shown = tag("img", src=source, alt=f"{name}, {told}", width=width, height=height)
    return tag("div", shown, tag("small", name), tag("span", escape(told)), class_="panel")


def _says(prediction: str, picture: Picture) -> str:
    mark = "\u2713" if prediction == picture.label else "\u2717"
    return f"says {prediction} {mark}"
