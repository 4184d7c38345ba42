"""An evaluation by several processes: each attacks its share of the images, all get all rows.

An image's random numbers are those of its place in the whole, so that its row is the one that a
single process finds. The processes say nothing to each other until their shares are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spat.errors import UserError
from spat.evaluation._attempt import Keep, Sink
from spat.evaluation.run import evaluate
from spat.records import Event, Outcomes
from spat.world import World

STOP = "stop evaluating"  # the word that one process leaves for the others


def evaluate_together(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attacks: str | Iterable[str],
    *,
    world: World,
    sink: Sink,
    keep: Keep,
    most: int | None = None,
    state: Path | None = None,
    within: str | float | None = None,
    budget: str | float | None = None,
    **settings: Any,
) -> Outcomes:
    """As `evaluate`; what the processes find, all of them get, or the mistake that one meets.

    sink: may end the evaluation by InterruptedError: of all processes, wherever it is raised
    keep: the first process's, given the images of all once all are done
    most: keep so many images of an attack from each process
    state: a folder in which each process has one, to go on from with as many processes
    """
    if world.size == 1:
        settings |= {"within": within, "budget": budget, "state": state}
        return evaluate(model, x, y, attacks, sink=sink, keep=keep, **settings)
    _refuse_sampling(world, within, budget)
    mine = torch.arange(world.rank, len(x), world.size)
    told = _heeding(sink, world)
    kept = Kept(mine, len(x) if most is None else most)
    own = None if state is None else state / f"{world.rank}-of-{world.size}"

    def attacked() -> Outcomes | None:
        if not len(mine):
            return None
        share = {"ids": mine, "state": own, "sink": told, "keep": kept, **settings}
        return evaluate(model, x[mine], y[mine], attacks, **share)

    text = f"each of {world.size} processes attacks its share; the first tells of its own"
    sink(Event("note", {"text": f"{text}, the table of all."}))
    parts = _shared(attacked, world)
    for found in _in_order(world.collected(kept.found)):
        keep(*found)
    return Outcomes.merge(parts)


class Found(NamedTuple):
    """Images that an attack found, as `keep` is given them."""

    label: str
    places: Tensor
    x_adv: Tensor
    predicted: Tensor


@dataclass
class Kept:
    """A `keep` that remembers, for the first process, up to `most` images of each attack.

    mine: the places in the whole of this process's images
    """

    mine: Tensor
    most: int
    found: list[Found] = field(default_factory=list)

    def __call__(self, label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        some = slice(0, self.most)
        rows = (self.mine[index.cpu()][some], x_adv[some].cpu(), predicted[some].cpu())
        self.found.append(Found(label, *rows))


def _in_order(shares: list[list[Found]]) -> Iterator[Found]:
    """The images of all processes, an attack at a time, as they lie in the whole."""
    for of_each in zip(*filter(None, shares), strict=True):
        parts = zip(*((one.places, one.x_adv, one.predicted) for one in of_each), strict=True)
        places, x_adv, predicted = map(torch.cat, parts)
        order = places.argsort()
        yield Found(of_each[0].label, places[order], x_adv[order], predicted[order])


def _refuse_sampling(world: World, within: str | float | None, budget: str | float | None) -> None:
    for name, given in (("within", within), ("budget", budget)):
        if given not in (None, "none"):
            raise UserError(
                f"{name} {given} samples the images by what is known of all so far, which "
                f"{world.size} processes do not know: leave it out, or use one process."
            )


def _heeding(sink: Sink, world: World) -> Sink:
    """A sink that ends one process's share because another one's was ended."""

    def heard(event: Event) -> None:
        sink(event)
        if world.called(STOP):
            raise InterruptedError

    return heard


def _shared(attacked: Callable[[], Outcomes | None], world: World) -> list[Outcomes]:
    """What each process found. A mistake or a wish to stop is everybody's at once."""
    part: Outcomes | None = None
    end: UserError | InterruptedError | None = None
    try:
        part = attacked()
    except (UserError, InterruptedError) as error:
        world.call(STOP)
        end = error
    said = world.gather((part, end))
    ends = [end for _, end in said if end is not None]
    if ends:
        raise min(ends, key=lambda end: isinstance(end, InterruptedError))
    return [part for part, _ in said if part is not None]
