"""Check a card with plain float32 forwards alone: no attack is run and no gradient is taken.

What this can show: the weights and the images are those of the card, every image that it counts as
broken is broken by the stored image, that image is inside the threat set, and the numbers follow.
So the accuracies are not lower than the truth of these images allows anyone to say. What it cannot
show: that a stronger attack would not break more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from spat import tensorfile
from spat.cards.card import Card, images_digest
from spat.cards.forwards import BATCH, TIE, Forwarded, forward
from spat.cards.images import NOBODY, own_column
from spat.cards.numbers import SECTIONS, numbers
from spat.records import Bools, Ints, Outcomes
from spat.reporting.wording import fraction
from spat.tensorfile import Rows
from spat.threat import threat

Level = Literal["ok", "tie", "fails"]
SLACK = 2.0**-24  # of a pixel: half a unit in the last place, in x - eps or x + eps
SHOWN = 5  # examples named in a line


@dataclass(frozen=True)
class Check:
    """One line of a verification."""

    name: str
    level: Level
    says: str


def check_card(
    card: Card,
    unaltered: bool,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rows: Rows,
    tell: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Every check, in order; each is told as soon as it is done.

    x, y: the test images that the card speaks of, in its order, on the model's device
    rows: the open file of adversarial images
    """
    done: list[Check] = []
    for check in _checks(card, unaltered, model, x, y, rows):
        done.append(check)
        tell(check)
    return done


def verdict(card: Card, checks: list[Check]) -> str:
    """One sentence: whether the claims stand, and what for."""
    failed = [check.name for check in checks if check.level == "fails"]
    if failed:
        return f"NOT VERIFIED: {len(failed)} of {len(checks)} checks fail ({', '.join(failed)})"
    ties = [check.name for check in checks if check.level == "tie"]
    close = f", with ties in rounding ({', '.join(ties)})" if ties else ""
    return f"VERIFIED{close}: {card.says[-1]}"


def _checks(
    card: Card, unaltered: bool, model: nn.Module, x: Tensor, y: Tensor, rows: Rows
) -> Iterator[Check]:
    outcomes = card.outcomes()
    yield _card(unaltered)
    yield _numbers(card, outcomes)
    for ground in (_weights(card, model), _test_images(card, x, y), _file(card, outcomes, rows)):
        yield ground
        if ground.level == "fails":
            return  # what follows would be about other things than the card is
    clean = forward(model, lambda a, b: x[a:b], y, outcomes.clean)
    yield _predictions("clean predictions", clean, outcomes.ids)
    yield _budget(card, "x_adv", x, rows)
    yield from _worst_case(card, outcomes, model, y, rows)
    for label in outcomes.attacks if (card.adversarial or {}).get("each") else ():
        yield from _one_attack(card, outcomes, label, model, x, y, rows)


def _card(unaltered: bool) -> Check:
    if unaltered:
        return Check("card", "ok", "the card is as it was written")
    return Check("card", "fails", "the card was altered after it was written: checksum")


def _numbers(card: Card, outcomes: Outcomes) -> Check:
    counted = json.loads(json.dumps(numbers(outcomes, card.data["classes"])))
    claims = {section: getattr(card, section) for section in SECTIONS}
    claims, counted = {**claims, "n": card.data["n"]}, {**counted, "n": len(outcomes)}
    for where, claimed, found in differences("", claims, counted):
        told = f"the card says {claimed!r} at {where}, its examples give {found!r}"
        return Check("numbers", "fails", told)
    return Check("numbers", "ok", f"every number follows from the {len(outcomes)} examples")


def differences(where: str, claimed: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    """The places where two values of JSON differ."""
    if isinstance(claimed, Mapping) and isinstance(found, Mapping):
        for key in [*found, *(claimed.keys() - found.keys())]:
            inner = f"{where}.{key}".removeprefix(".")
            yield from differences(inner, claimed.get(key), found.get(key))
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        for place, (a, b) in enumerate(zip(claimed, found, strict=True)):
            yield from differences(f"{where}[{place}]", a, b)
    elif claimed != found:
        yield where, claimed, found


def _weights(card: Card, model: nn.Module) -> Check:
    claimed, found = card.model["weights_sha256"], tensorfile.digest(model.state_dict())
    if claimed == found:
        return Check("weights", "ok", f"sha256 {found[:12]} as on the card")
    told = f"these weights have sha256 {found[:12]}, the card's have {str(claimed)[:12]}"
    return Check("weights", "fails", told)


def _test_images(card: Card, x: Tensor, y: Tensor) -> Check:
    if images_digest(x, y) == card.data["images_sha256"]:
        told = f"{len(x)} test images of {card.data['name']} as on the card"
        return Check("test images", "ok", told)
    told = "the test images or their labels are not those of the card"
    return Check("test images", "fails", told)


def _file(card: Card, outcomes: Outcomes, rows: Rows) -> Check:
    """The file belongs to the card, and both say the same of each example."""
    if rows.sha256 != (card.adversarial or {}).get("sha256"):
        told = "the file of adversarial images is not the one that the card names"
        return Check("adversarial file", "fails", told)
    wrong = [name for name, same in _agreements(card, outcomes, rows) if not same]
    if wrong:
        told = f"the card and the file of adversarial images differ in {wrong[0]}"
        return Check("adversarial file", "fails", told)
    return Check("adversarial file", "ok", f"{len(outcomes)} images, those of the card")


def _agreements(card: Card, outcomes: Outcomes, rows: Rows) -> Iterator[tuple[str, bool]]:
    lost = outcomes.correct & ~outcomes.worst
    column = {name: rows.whole(name).numpy() for name in rows.names if name[:5] != "x_adv"}
    images = [own_column(label) for label in outcomes.attacks if (card.adversarial or {})["each"]]
    yield "the images kept", set(rows.names) == {*column, "x_adv", *images}
    yield "the examples", np.array_equal(column["ids"], outcomes.ids)
    yield "the labels", np.array_equal(column["labels"], outcomes.labels)
    yield "clean predictions", np.array_equal(column["clean"], outcomes.clean)
    yield "what is broken", np.array_equal(column["broken"], lost)
    for number, label in enumerate(rows.meta["attacks"]):
        own = column["attack"] == number
        if label in outcomes.attacks:
            claimed = outcomes.attacks[label].predicted[own]
            yield f"predictions under {label}", np.array_equal(column["predicted"][own], claimed)


def _predictions(name: str, seen: Forwarded, ids: Ints) -> Check:
    """Whether each image is taken for the class that the card says."""
    wrong = seen.gap > TIE
    if wrong.any():
        told = f"{wrong.sum()} of {len(ids)} differ here: {_listed(ids[wrong])}"
        return Check(name, "fails", told)
    ties = seen.gap > 0
    if ties.any():
        most = seen.gap.max()
        told = f"{ties.sum()} of {len(ids)} differ by rounding (at most {most:.1e} of a logit)"
        return Check(name, "tie", told)
    return Check(name, "ok", f"{len(ids)} of {len(ids)} as on the card")


def _budget(card: Card, column: str, x: Tensor, rows: Rows) -> Check:
    """Inside [0, 1] and the ball, measured in float64."""
    eps, norm = float(card.threat["eps"]), card.threat["norm"]
    distance, outside = _distances(column, x, rows, norm)
    pixels = x[0].numel()
    slack = SLACK if norm == "linf" else SLACK * pixels**0.5 + 1e-6 * eps
    far = (distance > eps + slack).numpy()
    name = "threat set" + column.removeprefix("x_adv")
    if outside.any():
        told = f"{int(outside.sum())} images have pixels outside [0, 1] or NaN"
        return Check(name, "fails", f"{told}: {_listed(card.ids[outside.numpy()])}")
    if far.any():
        most = float(distance.max())
        told = f"{far.sum()} images are further than eps = {eps:g} ({norm}), up to {most:.6g}"
        return Check(name, "fails", f"{told}: {_listed(card.ids[far])}")
    told = f"all within eps {fraction(eps)} ({norm}) and [0, 1]; furthest {distance.max():.6g}"
    return Check(name, "ok", told)


def _distances(column: str, x: Tensor, rows: Rows, norm: str) -> tuple[Tensor, Tensor]:
    """[n] float64 distances from the clean images, and whether any pixel is outside [0, 1]."""
    measure, distances, outside = threat(norm, 0.0), [], []
    for start in range(0, len(x), BATCH):
        x_adv = rows.rows(column, start, start + BATCH).double()
        distances.append(measure.distance(x_adv, x[start : start + BATCH].double().cpu()))
        outside.append(~((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1))
    return torch.cat(distances), torch.cat(outside)


def _worst_case(
    card: Card, outcomes: Outcomes, model: nn.Module, y: Tensor, rows: Rows
) -> Iterator[Check]:
    lost = outcomes.correct & ~outcomes.worst
    seen = forward(model, lambda a, b: rows.rows("x_adv", a, b), y, rows.whole("predicted").numpy())
    yield _breaks("breaks", seen, lost, outcomes.ids)
    yield _predictions("adversarial predictions", seen, outcomes.ids)
    untouched = (rows.whole("attack") == NOBODY).numpy() & outcomes.correct
    shown, wrong = int(lost.sum()), int((~outcomes.correct).sum())
    told = f"{wrong} wrong without attack and {shown} broken leave {int(outcomes.worst.sum())}"
    missing = f"; {untouched.sum()} were kept unattacked" if untouched.any() else ""
    yield Check("worst case", "ok", f"{told} of {len(outcomes)}{missing}")


def _one_attack(
    card: Card,
    outcomes: Outcomes,
    label: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rows: Rows,
) -> Iterator[Check]:
    column, found = own_column(label), outcomes.attacks[label]
    seen = forward(model, lambda a, b: rows.rows(column, a, b), y, found.predicted)
    yield _budget(card, column, x, rows)
    yield _breaks(f"breaks: {label}", seen, found.broken, outcomes.ids)


def _breaks(name: str, seen: Forwarded, claimed: Bools, ids: Ints) -> Check:
    """Whether each image that is claimed broken is misclassified here, or tied."""
    false, total = claimed & seen.right & (seen.lead > TIE), int(claimed.sum())
    if false.any():
        told = f"{false.sum()} of {total} claimed breaks are classified rightly"
        return Check(name, "fails", f"{told}: {_listed(ids[false])}")
    tied = claimed & seen.right
    if tied.any():
        most = seen.lead[tied].max()
        told = f"{tied.sum()} of {total} are ties in rounding (at most {most:.1e} of a logit)"
        return Check(name, "tie", told)
    return Check(name, "ok", f"{total} of {total} claimed breaks are misclassified")


def _listed(ids: Ints) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"image{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:SHOWN]))}{more}"
