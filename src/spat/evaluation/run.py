"""Evaluate: every attack on every rightly classified image, each break verified.

An example counts as broken only if its stored image, inside the threat set, is misclassified by a
plain forward pass of the model itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from spat.contracts import check_images, check_labels, check_logits, check_not_probabilities
from spat.errors import UserError
from spat.evaluation.counted import Counted
from spat.evaluation.plan import Planned, plan_attacks
from spat.models import head_scale
from spat.modes import borrowed
from spat.records import Attacked, Event, Outcomes
from spat.rng import PerExample, derive
from spat.threat import Norm, threat

GPU_BATCH, CPU_BATCH = 512, 64
Sink = Callable[[Event], None]
Keep = Callable[[str, Tensor, Tensor, Tensor], None]


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
    sink: Sink = lambda event: None,
    keep: Keep = lambda label, index, x_adv, predicted: None,
) -> Outcomes:
    """What each attack does to each of these images; the model is given back as it was.

    batch_size: by default what fills a GPU, or what stays in a processor's cache
    scale: of a cosine head's logits; by default what the head was made for
    sink: told of progress
    keep: given an attack's label, places in x, the images found there, exactly as they were
        verified, and what the model takes them for
    """
    check_images(x)
    if not eps > 0:
        raise UserError(f"eps of an evaluation must be above 0, got {eps:g}.")
    threat(norm, eps)
    planned = plan_attacks(attacks, eps=eps, norm=norm, scale=scale or head_scale(model))
    device = next((p.device for p in model.parameters()), x.device)
    x, y = x.to(device), y.to(device)
    batch_size = batch_size or (GPU_BATCH if device.type == "cuda" else CPU_BATCH)
    clean = _clean_predictions(model, x, y, batch_size)
    columns: dict[str, Attacked] = {}
    for one in planned:
        columns[one.label] = _attack_all(model, x, y, clean, one, batch_size, seed, sink, keep)
    ids = np.arange(len(x), dtype=np.int64)
    return Outcomes(ids, y.cpu().numpy(), clean.cpu().numpy(), columns, float(eps), norm)


def _clean_predictions(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> Tensor:
    with borrowed(model, x.device), torch.no_grad():
        logits = []
        for part in torch.split(x, batch_size):
            logits.append(model(part))
            check_logits(logits[-1], len(part))
    z = torch.cat(logits)
    check_labels(y, len(x), z.shape[1])
    check_not_probabilities(z)
    return z.argmax(1)


def _attack_all(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    clean: Tensor,
    planned: Planned,
    batch_size: int,
    seed: int,
    sink: Sink,
    keep: Keep,
) -> Attacked:
    """One attack on the images that are right to begin with; the others keep their prediction."""
    predicted, distance = clean.clone(), torch.zeros(len(x))
    todo = (clean == y).nonzero().squeeze(1)
    source = PerExample(derive(seed, planned.label), torch.arange(len(x)))
    begun, done, counted = time.perf_counter(), 0, Counted(model)
    for index in torch.split(todo, batch_size) if len(todo) else ():
        x_adv = planned.attack(counted, x[index], y[index], rng=source[index])
        x_adv = planned.attack.threat.project(x_adv, x[index])  # once more, in the type it is in
        predicted[index] = _predictions(counted, x_adv)
        distance[index.cpu()] = planned.attack.threat.distance(x_adv, x[index]).float().cpu()
        keep(planned.label, index, x_adv, predicted[index])
        done += len(index)
        held = int((predicted[todo[:done]] == y[todo[:done]]).sum())
        seconds = time.perf_counter() - begun
        sink(_progress(planned.label, done, len(todo), held, seconds, counted))
    broken = (clean == y) & (predicted != y)
    return Attacked(
        predicted.cpu().numpy(),
        broken.cpu().numpy(),
        distance.numpy(),
        np.full(len(x), -1, np.int64),
    )


def _predictions(model: nn.Module, x: Tensor) -> Tensor:
    with borrowed(model, x.device), torch.no_grad():
        predicted: Tensor = model(x).argmax(1)
    return predicted


def _progress(label: str, done: int, n: int, held: int, seconds: float, counted: Counted) -> Event:
    left = seconds / done * (n - done)
    values = {"attack": label, "done": done, "n": n, "held": held}
    work = {"forwards": counted.forwards, "backwards": counted.backwards}
    return Event(
        "attack", {**values, "seconds": round(seconds, 2), "eta_s": round(left, 1), **work}
    )
