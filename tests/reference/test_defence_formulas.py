"""Every loss against its formula written out literally, in fifty digits; gradients by differences.

z, a: clean and adversarial logits (cosines, for SPAT) of one example, as lists.   y: its label.
held: what carries no gradient: weights of the batch, detached gains, a detached target.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from mpmath import exp, log, mp, mpf, tanh
from torch import Tensor

import spat
from spat.rng import generator

Row = list[Any]
STEP = mpf(10) ** -20
SHAPES = ((1, 2, 2.0), (2, 3, 30.0), (3, 4, 1000.0))  # examples, classes, spread of the logits
KAPPA = [0, 3, 2]


@pytest.fixture(autouse=True)
def fifty_digits() -> Iterator[None]:
    with mp.workdps(50):
        yield


def softmax(z: Row) -> Row:
    powers = [exp(v) for v in z]
    return [power / sum(powers) for power in powers]


def ce(z: Row, y: int) -> Any:
    return -log(softmax(z)[y])


def ratios(z: Row, a: Row, floor: Any = 0) -> Row:
    return [p * (log(p) - log(q + floor)) for p, q in zip(softmax(z), softmax(a), strict=True)]


def best_other(q: Row, y: int) -> Any:
    return max(v for j, v in enumerate(q) if j != y)


def madry(z: Row, a: Row, y: int, held: Any) -> Any:
    return ce(a, y)


def trades(z: Row, a: Row, y: int, held: Any, *, weight: float, detach_target: bool = False) -> Any:
    return ce(z, y) + weight * sum(ratios(held if detach_target else z, a))


def boosted(a: Row, y: int, variant: str = "official") -> Any:
    q = softmax(a)
    k = q.index(best_other(q, y))
    rest = sum(v for j, v in enumerate(q) if j != k)
    return ce(a, y) - log(rest if variant == "paper" else rest + mpf("1e-4") + mpf("1e-12"))


def doubted(z: Row, a: Row, y: int, variant: str = "official") -> Any:
    p, paper = softmax(z), variant == "paper"
    unsure = sum(v for j, v in enumerate(p) if j != y) + (0 if paper else mpf("1e-7"))
    return sum(ratios(z, a, 0 if paper else mpf("1e-12"))) * unsure


def mart(z: Row, a: Row, y: int, held: Any, *, weight: float, variant: str = "official") -> Any:
    return boosted(a, y, variant) + weight * doubted(z, a, y, variant)


def alp(z: Row, a: Row, y: int, held: Any, *, weight: float, **more: Any) -> Any:
    share, summed = more.get("clean_ce_weight", 0.5), more.get("pairing_reduction") == "sum"
    squares = sum((u - v) ** 2 for u, v in zip(z, a, strict=True))
    pairing = squares if summed else squares / len(z)
    return share * ce(z, y) + (1 - share) * ce(a, y) + weight * pairing


def mail(z: Row, a: Row, y: int, held: Any, *, base: str, weight: float = 5.0, **_: Any) -> Any:
    if base == "at":
        return held * ce(a, y)
    if base == "trades":
        return ce(z, y) + weight * held * sum(ratios(z, a))
    return held * boosted(a, y) + weight * doubted(z, a, y)


def gairat(z: Row, a: Row, y: int, held: Any, **_: Any) -> Any:
    return held * ce(a, y)


def spats(z: Row, a: Row, y: int, held: Any, *, scale: float, weight: float, **more: Any) -> Any:
    sp, alpha = more.get("sp", "both"), more.get("alpha", 0.2)
    gains = held if more.get("detach_gains") else gains_of(z, y, more.get("beta", 0.2))
    gains = gains if sp in ("accuracy", "both") else [1] * len(z)
    t = ratios([scale * c for c in z], [scale * c for c in a])
    robustness = alpha * sum(t) + sum(v * v for v in t) if sp in ("robustness", "both") else sum(t)
    return ce([scale * g * c for g, c in zip(gains, z, strict=True)], y) + weight * robustness


def gains_of(c: Row, y: int, beta: float) -> Row:
    return [(1 - v if j == y else v) + beta for j, v in enumerate(c)]


def in_proportion(omega: Row) -> Row:
    return [len(omega) * v / sum(omega) for v in omega]


def mail_weights(a: list[Row], y: list[int], settings: dict[str, Any]) -> Row:
    q = [softmax(row) for row in a]
    margins = [row[label] - best_other(row, label) for row, label in zip(q, y, strict=True)]
    slope, bias = settings["slope"], settings["bias"]
    omega = [1 / (1 + exp(-slope * (bias - margin))) for margin in margins]
    return in_proportion(omega) if settings["normalise"] == "batch" else [3 * v for v in omega]


def gairat_weights(n: int, settings: dict[str, Any]) -> Row:
    K, function = settings["steps"], settings.get("function", "tanh")
    half = mpf(K) / 2 if settings.get("variant") == "paper" else mpf(K // 2)
    u = [settings["shift"] + 5 * (half - kappa) / half for kappa in KAPPA[:n]]
    if function == "discrete":
        return in_proportion([mpf(K + 1 - kappa) / (K + 1) for kappa in KAPPA[:n]])
    shapes = {"tanh": lambda v: (1 + tanh(v)) / 2, "sigmoid": lambda v: 1 / (1 + exp(-v))}
    return in_proportion([shapes[function](v) for v in u])


def held_of(name: str, z: list[Row], a: list[Row], y: list[int], settings: dict[str, Any]) -> Row:
    if name == "mail":
        return mail_weights(a, y, settings)
    if name == "gairat":
        return gairat_weights(len(y), settings)
    if name == "spat":
        beta = settings.get("beta", 0.2)
        return [gains_of(row, label, beta) for row, label in zip(z, y, strict=True)]
    return [list(row) for row in z]


FORMULAS: dict[str, Callable[..., Any]] = {
    "madry": madry,
    "seat": madry,
    "trades": trades,
    "mart": mart,
    "alp": alp,
    "mail": mail,
    "gairat": gairat,
    "spat": spats,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("madry", {}),
    ("seat", {}),
    ("trades", {"weight": 6.0}),
    ("trades", {"weight": 1.5, "detach_target": True}),
    *(("mart", {"weight": 5.0, "variant": v}) for v in ("official", "paper")),
    ("alp", {"weight": 0.5}),
    ("alp", {"weight": 3.0, "pairing_reduction": "sum", "clean_ce_weight": 0.0}),
    *(
        ("mail", {"base": b, "slope": s, "bias": m, "normalise": n})
        for b in ("at", "trades", "mart")
        for (s, m), n in zip(((10.0, -0.5), (2.0, 0.0)), ("x3", "batch"), strict=True)
    ),
    *(
        ("gairat", {"shift": s, "steps": k, "function": f, "variant": v})
        for s, k in ((-1.0, 10), (2.5, 7))
        for f, v in (("tanh", "official"), ("tanh", "paper"), ("sigmoid", "paper"))
    ),
    ("gairat", {"shift": 0.0, "steps": 3, "function": "discrete"}),
    *(
        ("spat", {"scale": s, "weight": w, "sp": sp, "detach_gains": d})
        for (s, w), d in zip(((5.0, 6.0), (9.0, 1.5)), (False, True), strict=True)
        for sp in ("none", "accuracy", "robustness", "both")
    ),
    ("spat", {"scale": 8.0, "weight": 6.0, "alpha": 0.0, "beta": 0.0}),
]


@pytest.mark.parametrize(("n", "classes", "spread"), SHAPES)
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_equals_the_formula(
    name: str, settings: dict[str, Any], n: int, classes: int, spread: float
) -> None:
    source = generator(n, "formulas")
    sides = spread * torch.randn(2, n, classes, generator=source, dtype=torch.float64)
    if name == "spat":
        sides = (sides / spread).tanh()
    y = torch.randint(classes, (n,), generator=source)
    context = {"kappa": torch.tensor(KAPPA[:n])} if name == "gairat" else {}
    found = value_and_gradients(spat.defence(name, **settings), sides, y, context)
    for ours, exact in zip(found, literal(name, settings, sides, y), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-12)


def value_and_gradients(
    built: Any, sides: Tensor, y: Tensor, context: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    leaf = sides.clone().requires_grad_()
    loss = built.terms(leaf[0], leaf[1], y, **context).loss
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def literal(name: str, settings: dict[str, Any], sides: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    rows = [[[mpf(v) for v in row] for row in side] for side in sides.tolist()]
    labels, n, classes = y.tolist(), len(y), sides.shape[2]
    held = held_of(name, *rows, labels, settings)

    def loss(i: int) -> Any:
        return FORMULAS[name](rows[0][i], rows[1][i], labels[i], held[i], **settings)

    gradient = torch.zeros_like(sides)
    for side, i, j in itertools.product(range(2), range(n), range(classes)):
        here = rows[side][i][j]
        ends = []
        for there in (here + STEP, here - STEP):
            rows[side][i][j] = there
            ends.append(loss(i))
        rows[side][i][j] = here
        gradient[side, i, j] = float((ends[0] - ends[1]) / (2 * STEP) / n)
    mean = sum(map(loss, range(n))) / n
    return torch.tensor(float(mean), dtype=torch.float64), gradient
