"""Transfer: images crafted on one model, tried on others that the attacker has never seen.

Every image is attacked on the source, also one that the source misclassifies already. Shares are of
all images: a target holds an image if it is right about the clean one and about the adversarial
one. A cosine head that serves as a source is attacked at its own scale.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from spat.contracts import check_images, check_labels, check_logits, check_not_probabilities
from spat.errors import UserError
from spat.evaluation._room import automatic
from spat.evaluation._subject import device_of
from spat.evaluation.plan import Planned, plan_attacks
from spat.evaluation.run import Sink
from spat.models import head_scale
from spat.modes import borrowed, full_float32
from spat.records import Attacked, Event, Outcomes, Transferred, transferred_from
from spat.rng import PerExample, derive
from spat.threat import Norm, threat

Models = Mapping[str, nn.Module]
GPU_BATCH, CPU_BATCH = 512, 64  # what fills a GPU; what stays in a processor's cache


def transfer(
    sources: Models,
    targets: Models,
    x: Tensor,
    y: Tensor,
    attacks: str | Iterable[str] = "pgd-20",
    *,
    eps: float = 8 / 255,
    norm: Norm = "linf",
    batch_size: int | None = None,
    seed: int = 0,
    sink: Sink = lambda event: None,
) -> Transferred:
    """Craft images on each source with each attack, and try them on every target.

    sources, targets: models by the names that the result has for them; all come back unchanged
    """
    _check(sources, targets, x, eps, norm)
    names = attacks.replace(",", " ").split() if isinstance(attacks, str) else list(attacks)
    models, y = {**sources, **targets}, y.cpu()
    clean = {name: _clean(model, x, y, batch_size) for name, model in models.items()}
    own: dict[str, dict[str, Attacked]] = {name: {} for name in sources}
    shown: dict[str, dict[str, Attacked]] = {name: {} for name in targets}
    settings: dict[str, dict[str, str]] = {name: {} for name in sources}
    for source, name in itertools.product(sources, dict.fromkeys(names)):
        planned, title = _planned(name, sources[source], eps, norm), transferred_from(name, source)
        columns = {m: Column(models[m], y, clean[m]) for m in (source, *targets)}
        told = _Told(sink, title, columns[source])
        for index, x_adv, distance in _crafted(sources[source], x, y, planned, batch_size, seed):
            for column in columns.values():
                column.show(index, x_adv, distance)
            told(index)
        settings[source][name] = repr(planned.attack)
        own[source][name] = columns[source].attacked()
        for target in targets:
            shown[target][title] = columns[target].attacked()
    outcomes = partial(_outcomes, y=y, clean=clean, eps=eps, norm=norm)
    return Transferred(
        {name: outcomes(name, columns) for name, columns in own.items()},
        {name: outcomes(name, columns) for name, columns in shown.items()},
        settings,
    )


class Column:
    """What a model says of adversarial images, filled a batch at a time."""

    def __init__(self, model: nn.Module, y: Tensor, clean: Tensor) -> None:
        self.model, self.y, self.clean = model, y, clean
        self.predicted, self.distance = clean.clone(), torch.zeros(len(y))

    @property
    def broken(self) -> Tensor:
        return (self.clean == self.y) & (self.predicted != self.y)

    def show(self, index: Tensor, x_adv: Tensor, distance: Tensor) -> None:
        """As in any evaluation, what is wrong from the start keeps its clean prediction."""
        right = self.clean[index] == self.y[index]
        seen = _logits(self.model, x_adv).argmax(1).cpu()
        self.predicted[index] = torch.where(right, seen, self.clean[index])
        self.distance[index] = torch.where(right, distance, 0.0)

    def attacked(self) -> Attacked:
        unknown = np.full(len(self.y), -1, np.int64)
        columns = (self.predicted.numpy(), self.broken.numpy(), self.distance.numpy())
        return Attacked(*columns, unknown)


class _Told:
    """Tells of progress: how many images are done, how many the source itself still holds."""

    def __init__(self, sink: Sink, title: str, own: Column) -> None:
        self.sink, self.title, self.own = sink, title, own
        self.begun, self.done = time.perf_counter(), 0

    def __call__(self, index: Tensor) -> None:
        self.done += len(index)
        n, seconds = len(self.own.y), time.perf_counter() - self.begun
        held = int((self.own.predicted == self.own.y).sum())
        values = {"attack": self.title, "done": self.done, "n": n, "held": held}
        left = seconds / self.done * (n - self.done)
        self.sink(
            Event("attack", {**values, "seconds": round(seconds, 2), "eta_s": round(left, 1)})
        )


def _crafted(
    model: nn.Module, x: Tensor, y: Tensor, planned: Planned, batch_size: int | None, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Places, adversarial images and their distances, batch by batch."""
    source = PerExample(derive(seed, planned.label), torch.arange(len(x)))
    device = device_of(model, x)
    for index in _batches(x, device, batch_size):
        clean = x[index.to(x.device)].to(device)
        x_adv = planned.attack(model, clean, y[index].to(device), rng=source[index])
        yield index, x_adv, planned.attack.threat.distance(x_adv, clean).float().cpu()


def _clean(model: nn.Module, x: Tensor, y: Tensor, batch_size: int | None) -> Tensor:
    """[n] predictions, on the CPU, of a model whose first answers are those of a classifier."""
    logits = []
    for index in _batches(x, device_of(model, x), batch_size):
        logits.append(_logits(model, x[index.to(x.device)]))
        check_logits(logits[-1], len(index))
    z = torch.cat(logits)
    check_labels(y, len(x), z.shape[1])
    check_not_probabilities(z)
    return z.argmax(1).cpu()


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    device = device_of(model, x)
    with borrowed(model, device), torch.no_grad(), full_float32():
        z: Tensor = model(x.to(device))
    return z


def _batches(x: Tensor, device: torch.device, size: int | None) -> tuple[Tensor, ...]:
    usual = automatic(device, x[0].shape)
    return torch.arange(len(x)).split(size or usual)  # type: ignore[no-untyped-call, no-any-return]


def _planned(name: str, model: nn.Module, eps: float, norm: Norm) -> Planned:
    """One attack; of the two that a cosine head calls for, the stronger one, which comes last."""
    return plan_attacks([name], eps=eps, norm=norm, scale=head_scale(model), exact=True)[-1]


def _outcomes(
    model: str,
    columns: Mapping[str, Attacked],
    *,
    y: Tensor,
    clean: Mapping[str, Tensor],
    eps: float,
    norm: Norm,
) -> Outcomes:
    ids = np.arange(len(y), dtype=np.int64)
    return Outcomes(ids, y.long().numpy(), clean[model].numpy(), columns, float(eps), norm)


def _check(sources: Models, targets: Models, x: Tensor, eps: float, norm: Norm) -> None:
    check_images(x)
    if not sources or not targets:
        raise UserError("transfer needs at least one source and one target.")
    for name in sources.keys() & targets.keys():
        if sources[name] is not targets[name]:
            raise UserError(f"two models are both called {name!r}; give one another name.")
    if not eps > 0:
        raise UserError(f"eps of a transfer must be above 0, got {eps:g}.")
    threat(norm, eps)
