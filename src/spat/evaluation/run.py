"""Evaluate: every attack on every rightly classified image, each break confirmed.

What is attacked is a fast copy of the model. An example counts as broken only if its stored image,
once more projected on the threat set in its own type, is misclassified by a plain forward pass of
the model itself: a copy can only make an attack weaker, never a result worse than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from spat.contracts import check_images, check_labels, check_module
from spat.errors import UserError
from spat.evaluation import _official, _room
from spat.evaluation._course import Course
from spat.evaluation._progress import Progress
from spat.evaluation._subject import Subject, device_of
from spat.evaluation.plan import Planned, plan_attacks
from spat.models import head_scale
from spat.modes import borrowed
from spat.records import Event, Outcomes
from spat.threat import Norm, threat

Sink = Callable[[Event], None]
Keep = Callable[[str, Tensor, Tensor, Tensor], None]
TRAIN_MODE = "the model was left in training mode: it was evaluated in evaluation mode."


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attacks: str | Iterable[str] = "pgd-20 cw",
    *,
    eps: float = 8 / 255,
    norm: Norm = "linf",
    scale: float | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    exact: bool = False,
    ids: Tensor | None = None,
    sink: Sink = lambda event: None,
    keep: Keep = lambda label, index, x_adv, predicted: None,
) -> Outcomes:
    """What each attack does to each of these images; the model is given back as it was.

    scale: of a cosine head's logits; by default what the head was made for
    batch_size: by default what suits the device; halved where its memory ends
    exact: attack the model itself, and give `aa` the verdicts of the official code
    ids: the images' numbers in their data set, which decide their random numbers: so a part of a
        data set gets the rows that it gets as part of the whole
    sink: told of progress
    keep: given an attack's label, places in x, the images found there, exactly as they were
        verified, and what the model takes them for
    """
    check_module(model)
    check_images(x)
    check_labels(y, len(x))
    check_budget(eps, norm)
    scale = scale or head_scale(model)
    planned = plan_attacks(attacks, eps=eps, norm=norm, scale=scale, exact=exact)
    device = device_of(model, x)
    size = batch_size or (_official.BATCH if exact else _room.automatic(device, x[0].shape))
    ids = torch.arange(len(x)) if ids is None else ids.cpu()
    notes = [TRAIN_MODE] if any(module.training for module in model.modules()) else []
    with borrowed(model, device):
        subject = Subject(model, device, _room.Room(size))
        examples = subject.examples(x, y, ids)
        if planned and not exact:
            subject.hasten(x)
        notes += [*subject.notes, *_remarks(planned, examples.classes)]
        for note in notes:
            sink(Event("note", {"text": note}))
        columns = {}
        for one in planned:
            course = Course(one, subject, examples, seed, exact=exact)
            columns[one.label] = course.run(Progress(sink, subject))
            tally = course.tally
            at = tally.todo.nonzero().squeeze(1)
            keep(one.label, at, tally.x_adv[at], tally.predicted[at])
    rows = [t.numpy() for t in (examples.ids, examples.y, examples.predicted)]
    return Outcomes(rows[0], rows[1], rows[2], columns, float(eps), norm, tuple(notes))


def check_budget(eps: float, norm: Norm) -> None:
    if not eps > 0:
        raise UserError(f"eps of an evaluation must be above 0, got {eps:g}.")
    threat(norm, eps)


def _remarks(planned: Iterable[Planned], classes: int) -> list[str]:
    """What a reader must know of attacks on so few classes."""
    remarks = {one.label: getattr(one.attack, "remark", lambda _: "")(classes) for one in planned}
    return [f"{label} on {remark}" for label, remark in remarks.items() if remark]
