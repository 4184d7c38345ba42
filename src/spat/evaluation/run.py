"""Evaluate: every attack on every rightly classified image, each break confirmed.

What is attacked is a fast copy of the model. An example counts as broken only if its stored image,
once more projected on the threat set in its own type, is misclassified by a plain forward pass of
the model itself: a copy can only make an attack weaker, never a result worse than it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from spat.contracts import check_images, check_labels, check_module
from spat.errors import UserError
from spat.evaluation import _official, _room
from spat.evaluation._anytime import attacked, reason
from spat.evaluation._attempt import Bench, Clock, Keep, Sink
from spat.evaluation._fingerprint import fingerprint
from spat.evaluation._sampling import sampled
from spat.evaluation._store import opened
from spat.evaluation._subject import Subject, device_of
from spat.evaluation._wave import Wave
from spat.evaluation.plan import Planned, plan_attacks
from spat.interval import interval
from spat.limits import limits
from spat.models import head_scale
from spat.modes import borrowed
from spat.records import Event, Outcomes, Scalar
from spat.threat import Norm, threat

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
    within: str | float | None = None,
    budget: str | float | None = None,
    ids: Tensor | None = None,
    state: Path | str | None = None,
    save_every: str | float = "2m",
    sink: Sink = lambda event: None,
    keep: Keep = lambda label, index, x_adv, predicted: None,
) -> Outcomes:
    """What each attack does to each of these images; the model is given back as it was.

    scale: of a cosine head's logits; by default what the head was made for
    batch_size: by default what suits the device; halved where its memory ends
    exact: attack the model itself, and give `aa` the verdicts of the official code
    within: stop once half the 95% interval of the worst case is so narrow: "1pp" or 0.01
    budget: stop after so long: "5m". Both sample the images without bias; the outcomes are then
        those of a part of them, and say so
    ids: the images' numbers in their data set, which decide their random numbers: so a part of a
        data set gets the rows that it gets as part of the whole
    state: a folder for the state, saved every so often: where it holds one, the evaluation goes on
        from there, and its rows are those of one that was never stopped
    sink: told of progress; an error that it raises ends the evaluation, its state saved
    keep: given an attack's label, places in x, the images found there, exactly as they were
        verified, and what the model takes them for
    """
    check_module(model)
    check_images(x)
    check_labels(y, len(x))
    check_budget(eps, norm)
    stop, every = limits(within, budget), interval(save_every, "save_every")
    scale = scale or head_scale(model)
    planned = plan_attacks(attacks, eps=eps, norm=norm, scale=scale, exact=exact)
    device = device_of(model, x)
    size = batch_size or (_official.BATCH if exact else _room.automatic(device, x[0].shape))
    ids = torch.arange(len(x)) if ids is None else ids.cpu()
    waves = sampled(len(x), seed, size) if stop else []
    own: dict[str, Scalar] = {"eps": float(eps), "norm": norm, "seed": seed, "exact": exact}
    own |= {
        "batch size": size if exact else "any",
        "waves": f"of {max(map(len, waves))}" if stop else "none",
    }
    mine = partial(fingerprint, model, x, y, ids, planned, **own)
    notes = [TRAIN_MODE] if any(module.training for module in model.modules()) else []
    told = partial(_note, sink)
    with borrowed(model, device), opened(state, mine, every, told) as store:
        subject = Subject(model, device, _room.Room(size))
        bench = Bench(
            subject, x, y, ids, planned, float(eps), norm, seed, exact, store, Clock(stop.seconds),
            sink, keep,
        )  # fmt: skip
        first = Wave(bench, waves[0] if stop else None, 0)
        if planned and not exact:
            subject.hasten(x)
        notes += [*subject.notes, *_remarks(planned, first.examples.classes)]
        for note in notes:
            told(note)
        found = Outcomes.merge(attacked(bench, first, waves, stop)) if stop else first.run()
    why = reason(found, len(x), seed, stop) if stop else ""
    return replace(found, notes=(*notes, *filter(None, [why])), how=_how(bench, len(found)))


def check_budget(eps: float, norm: Norm) -> None:
    if not eps > 0:
        raise UserError(f"eps of an evaluation must be above 0, got {eps:g}.")
    threat(norm, eps)


def _remarks(planned: Iterable[Planned], classes: int) -> list[str]:
    """What a reader must know of attacks on so few classes."""
    remarks = {one.label: getattr(one.attack, "remark", lambda _: "")(classes) for one in planned}
    return [f"{label} on {remark}" for label, remark in remarks.items() if remark]


def _how(bench: Bench, n: int) -> dict[str, Scalar]:
    """What a Record says of how its images were attacked and chosen."""
    of, attacked = len(bench.x), "the model itself" if bench.exact else "a fast copy of the model"
    return {
        "attacked": attacked if bench.planned else "nothing",
        "batch_size": bench.subject.room.size,
        "images": n,
        "of": of,
        "chosen": "all" if n == of else f"the first of a random order, seed {bench.seed}",
    }


def _note(sink: Sink, text: str) -> None:
    sink(Event("note", {"text": text}))
