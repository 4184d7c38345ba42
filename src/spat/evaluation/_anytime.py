"""Wave after wave until they are enough; `_sampling` tells why that is fair."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spat.errors import UserError
from spat.evaluation._attempt import Bench, TimeIsUpError
from spat.evaluation._sampling import half_width, time_left
from spat.evaluation._wave import Wave
from spat.limits import Limits
from spat.records import Event, Outcomes
from spat.statistics import wilson


def attacked(bench: Bench, first: Wave, waves: Sequence[Tensor], stop: Limits) -> list[Outcomes]:
    """The waves that count: those that were attacked to the end, before there was a reason to stop.

    first: the first of the waves
    """
    done: list[Outcomes] = []
    for number, at in enumerate(waves):
        if done and not _has_time(bench, done, number, len(at)):
            break
        try:
            done.append((Wave(bench, at, number) if number else first).run())
        except TimeIsUpError:
            break
        found = Outcomes.merge(done)
        _tell(bench, found, stop)
        if _is_enough(found, stop):
            break
    if not done:
        raise UserError(
            f"a budget of {stop.seconds:g} s ended before the first {len(waves[0])} images were "
            "attacked: give it more time, or fewer attacks."
        )
    return done


def reason(found: Outcomes, of: int, seed: int, stop: Limits) -> str:
    """Why the images that count are these, in a sentence; empty if they are simply all."""
    n, half = len(found), half_width(int(found.worst.sum()), len(found))
    case = "the worst case" if found.attacks else "clean accuracy"
    width = f"half the 95% interval of {case} is {100 * half:.2f} pp"
    enough = _is_enough(found, stop)
    if n == of:
        attacked = "the only image was" if n == 1 else f"all {n} images were"
        missed = f"{attacked} attacked, and {width}, not {100 * stop.within:g} pp."
        return missed if stop.within and not enough else ""
    why = f"{width}, of {100 * stop.within:g} pp asked for"
    why = why if enough else f"its budget of {stop.seconds:g} s was spent"
    return f"{n} of {of} images were attacked, the first of a random order (seed {seed}): {why}."


def _is_enough(found: Outcomes, stop: Limits) -> bool:
    return half_width(int(found.worst.sum()), len(found)) <= stop.within


def _has_time(bench: Bench, done: list[Outcomes], number: int, more: int) -> bool:
    """As far as the waves behind it tell; for one that was begun already that was decided."""
    spent, n = bench.clock.spent, sum(map(len, done))
    return bench.store.has(number) or spent + spent / n * more <= bench.clock.limit


def _tell(bench: Bench, found: Outcomes, stop: Limits) -> None:
    n, k, of = len(found), int(found.worst.sum()), len(bench.x)
    spent, (low, high) = bench.clock.spent, wilson(k, n)
    left = time_left(k, n, of, spent, stop)
    values = {"n": n, "of": of, "worst": k / n, "low": low, "high": high}
    times = {"seconds": round(spent, 2), "eta_s": round(left, 1)}
    bench.sink(Event("wave", {**values, **times}))
