"""Transfer: images crafted on one model, tried on others that the attacker has never seen.

Every image is attacked on the source, also one that the source misclassifies already. Shares are of
all images: a target holds an image if it is right about the clean one and about the adversarial
one. A cosine head that serves as a source is attacked at its own scale. As in any evaluation a fast
copy of the source is attacked, and the models themselves have the say.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from spat.attacks._base import Attack
from spat.contracts import check_images
from spat.errors import UserError
from spat.evaluation._attempt import Sink
from spat.evaluation._room import Room, automatic
from spat.evaluation._subject import Examples, Subject, device_of
from spat.evaluation.plan import Planned, plan_attacks
from spat.evaluation.run import check_budget
from spat.models import head_scale
from spat.modes import borrowed, full_float32
from spat.records import Attacked, Event, Outcomes, Transferred, transferred_from
from spat.rng import PerExample, derive
from spat.threat import Norm

Models = Mapping[str, nn.Module]


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
    exact: bool = False,
    sink: Sink = lambda event: None,
) -> Transferred:
    """Craft images on each source with each attack, and try them on every target.

    sources, targets: models by the names that the result has for them; all come back unchanged
    exact: attack the sources themselves, not fast copies of them
    """
    _check(sources, targets, x, eps, norm)
    names = attacks.replace(",", " ").split() if isinstance(attacks, str) else list(attacks)
    with ExitStack() as borrowing:
        shown = {
            name: Shown(model, x, y, batch_size, borrowing)
            for name, model in {**sources, **targets}.items()
        }
        settings: dict[str, dict[str, str]] = {name: {} for name in sources}
        for source, model in sources.items():
            if not exact:
                shown[source].subject.hasten(x)
            for name in dict.fromkeys(names):
                planned = _planned(name, model, eps, norm)
                settings[source][name] = repr(planned.attack)
                watching = {one: shown[one] for one in (source, *targets)}
                Trial(planned, transferred_from(name, source), seed, watching, sink).run()
    return Transferred(
        {source: _own(shown[source], source, settings[source], eps, norm) for source in sources},
        {target: _others(shown[target], settings, eps, norm) for target in targets},
        settings,
    )


class Shown:
    """A model, and what it says of the images that it is shown, column by column."""

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, size: int | None, borrowing: ExitStack
    ) -> None:
        device = device_of(model, x)
        borrowing.enter_context(borrowed(model, device))
        room = Room(size or automatic(device, x[0].shape))
        self.subject = Subject(model, device, room)
        self.examples: Examples = self.subject.examples(x, y, torch.arange(len(x)))
        self.predicted: dict[str, Tensor] = {}
        self.distance: dict[str, Tensor] = {}

    @property
    def right(self) -> Tensor:
        return self.examples.predicted == self.examples.y

    def open(self, column: str) -> None:
        self.predicted[column] = self.examples.predicted.clone()
        self.distance[column] = torch.zeros(len(self.examples))

    def see(self, column: str, at: Tensor, x_adv: Tensor, distance: Tensor) -> None:
        """As in any evaluation, what is wrong from the start keeps its clean prediction."""
        with torch.no_grad(), full_float32():
            z: Tensor = self.subject.model(x_adv.to(self.subject.device))
        right = self.right[at]
        was = self.examples.predicted[at]
        self.predicted[column][at] = torch.where(right, z.argmax(1).cpu(), was)
        self.distance[column][at] = torch.where(right, distance, 0.0)

    def attacked(self, column: str) -> Attacked:
        broken = self.right & (self.predicted[column] != self.examples.y)
        unknown = np.full(len(broken), -1, np.int64)
        predicted, distance = self.predicted[column].numpy(), self.distance[column].numpy()
        return Attacked(predicted, broken.numpy(), distance, unknown)

    def outcomes(self, columns: Mapping[str, Attacked], eps: float, norm: Norm) -> Outcomes:
        e = self.examples
        rows = (e.ids.numpy(), e.y.numpy(), e.predicted.numpy())
        return Outcomes(*rows, columns, float(eps), norm)


class Trial:
    """One attack on one source, its images shown to the source itself and to every target."""

    def __init__(
        self, planned: Planned, title: str, seed: int, watching: Mapping[str, Shown], sink: Sink
    ) -> None:
        self.attack: Attack = planned.attack
        self.title, self.watching, self.sink = title, list(watching.values()), sink
        self.source = self.watching[0]
        self.streams = PerExample(derive(seed, planned.label), self.source.examples.ids)
        self.begun = time.perf_counter()

    def run(self) -> None:
        n, done, room = len(self.source.examples), 0, self.source.subject.room
        for shown in self.watching:
            shown.open(self.title)
        while done < n:
            at = torch.arange(done, min(done + room.size, n))
            if room.fits(partial(self._batch, at), len(at)):
                done += len(at)
                self._tell(done, n)

    def _batch(self, at: Tensor) -> None:
        e, subject = self.source.examples, self.source.subject
        clean = e.x[at.to(e.x.device)].to(subject.device)
        y = e.y[at].to(subject.device)
        x_adv = self.attack(subject.copy, clean, y, rng=self.streams[at])
        distance = self.attack.threat.distance(x_adv, clean).float().cpu()
        for shown in self.watching:
            shown.see(self.title, at, x_adv, distance)

    def _tell(self, done: int, n: int) -> None:
        """How many images are done, and how many the source itself still holds."""
        seconds = time.perf_counter() - self.begun
        held = int((self.source.predicted[self.title] == self.source.examples.y).sum())
        values = {"attack": self.title, "done": done, "n": n, "held": held}
        times = {"seconds": round(seconds, 2), "eta_s": round(seconds / done * (n - done), 1)}
        self.sink(Event("attack", {**values, **times}))


def _own(shown: Shown, source: str, attacks: Iterable[str], eps: float, norm: Norm) -> Outcomes:
    """The white-box result of a source, under the attacks' own names."""
    columns = {name: shown.attacked(transferred_from(name, source)) for name in attacks}
    return shown.outcomes(columns, eps, norm)


def _others(shown: Shown, crafted: Mapping[str, Iterable[str]], eps: float, norm: Norm) -> Outcomes:
    titles = [transferred_from(name, source) for source, own in crafted.items() for name in own]
    return shown.outcomes({title: shown.attacked(title) for title in titles}, eps, norm)


def _planned(name: str, model: nn.Module, eps: float, norm: Norm) -> Planned:
    """One attack; of the two that a cosine head calls for, the stronger one, which comes last."""
    return plan_attacks([name], eps=eps, norm=norm, scale=head_scale(model), exact=True)[-1]


def _check(sources: Models, targets: Models, x: Tensor, eps: float, norm: Norm) -> None:
    check_images(x)
    if not sources or not targets:
        raise UserError("transfer needs at least one source and one target.")
    for name in sources.keys() & targets.keys():
        if sources[name] is not targets[name]:
            raise UserError(f"two models are both called {name!r}; give one another name.")
    check_budget(eps, norm)
