"""FAB against the nearest point of a linear model, which a linear programme solves exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

import spat
from conftest import Convolutional, Linear
from spat.attacks._fab import BoundarySearch, FabState
from spat.attacks.fab import FAB
from spat.attacks.fab_t import FabT
from spat.rng import PerExample

FABS = [FAB, FabT]


def linear(classes: int = 4) -> Linear:
    rng = torch.Generator().manual_seed(1)
    return Linear(torch.randn(classes, 12, generator=rng), torch.randn(classes, generator=rng))


class Bent(nn.Module):
    """A random network with smooth, curved boundaries close to any image."""

    def __init__(self, pixels: int = 128, classes: int = 4) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(6)
        self.inner = nn.Parameter(torch.randn(32, pixels, generator=rng) / pixels**0.5)
        self.outer = nn.Parameter(torch.randn(classes, 32, generator=rng))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((x.flatten(1) - 0.5) @ self.inner.T) @ self.outer.T


def correct(model: nn.Module, shape: tuple[int, ...] = (3, 2, 2)) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, *shape, generator=torch.Generator().manual_seed(2))
    x[0], x[1, :, 0] = 1.0, 0.0  # in a corner and on edges of the box
    with torch.no_grad():
        return x, model(x).argmax(1)


def least_linf(model: Linear, x: Tensor, y: int, other: int) -> float:
    """min t: (w_other - w_y).(x + d) + b_other - b_y >= 0, |d| <= t, 0 <= x + d <= 1."""
    w = (model.weight[other] - model.weight[y]).detach().double().numpy()
    gap = float((model(x[None])[0, other] - model(x[None])[0, y]).detach())
    p, n = x.flatten().double().numpy(), x.numel()
    both = np.vstack([np.eye(n), -np.eye(n)])
    solved = linprog(
        c=[*np.zeros(n), 1.0],
        A_ub=np.vstack([np.hstack([both, -np.ones((2 * n, 1))]), [[*-w, 0.0]]]),
        b_ub=[*np.zeros(2 * n), gap],
        bounds=[*zip(-p, 1 - p, strict=True), (0, None)],
    )
    return float(solved.fun) if solved.success else float("inf")


def walked(search: BoundarySearch, model: nn.Module, x: Tensor, y: Tensor, k: int = 0) -> FabState:
    """All steps of one round, also beyond the first success."""
    model.eval()
    batch = search.batch(model, x, y, PerExample(0, torch.arange(len(x))))
    state = search.begin(model, batch, k)
    for _ in range(search.steps):
        search.advance(model, state)
    return state


def test_finds_the_least_distance_of_a_linear_model() -> None:
    model = linear()
    x, y = correct(model)
    distance = walked(FAB(eps=0.0), model, x, y).distance
    for i in range(len(x)):
        others = [c for c in range(4) if c != int(y[i])]
        least = min(least_linf(model, x[i], int(y[i]), c) for c in others)
        assert least <= float(distance[i]) + 1e-6
        assert float(distance[i]) == pytest.approx(least, rel=0.02)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_finds_the_least_distance_to_each_target(rank: int) -> None:
    """With two classes at a time no third can be met on the way."""
    full = linear()
    x, y = correct(full)
    target = full(x).argsort(1, descending=True)[:, rank + 1]
    for i in range(len(x)):
        pair = torch.stack([y[i], target[i]])
        model = Linear(full.weight.detach()[pair], full.bias.detach()[pair])
        distance = walked(FabT(eps=0.0), model, x[i : i + 1], torch.tensor([0])).distance
        least = least_linf(model, x[i], 0, 1)
        if np.isfinite(least):
            assert float(distance[0]) == pytest.approx(least, rel=0.02)
        else:
            assert float(distance[0]) == np.inf


def test_away_from_the_box_it_is_the_margin_over_the_dual_norm() -> None:
    model = linear(2)
    w = (model.weight[0] - model.weight[1]).detach()
    x = torch.full((3, 3, 2, 2), 0.5)
    x += 0.02 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.bias.copy_(torch.tensor([-(w @ x[0].flatten()) + 0.2, 0.0]))
    z, y = model(x).detach(), model(x).argmax(1)
    margin = (z[:, 0] - z[:, 1]).abs()
    for norm, dual in (("linf", w.abs().sum()), ("l2", w.norm())):
        for attack in FABS:
            distance = walked(attack(eps=0.0, norm=norm), model, x, y).distance
            torch.testing.assert_close(distance, margin / dual, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", FABS)
def test_stopping_at_eps_gives_the_verdict_of_the_full_walk(
    attack: type[BoundarySearch], norm: str
) -> None:
    model = Bent()
    x, y = correct(model, (2, 8, 8))
    distance = walked(attack(eps=0.0, norm=norm), model, x, y).distance
    eps = float(distance.median())
    search = attack(eps=eps, norm=norm)
    state = walked(search, model, x, y)
    assert torch.equal(state.broken, distance <= eps)
    assert 0 < int(state.broken.sum()) < len(x)
    moved = (state.x_found - x)[state.broken].flatten(1)
    size = moved.abs().amax(1) if norm == "linf" else moved.norm(dim=1)
    assert bool((size <= eps).all())
    wrong = model(state.x_found).argmax(1) != y
    assert torch.equal(wrong, state.broken)


@pytest.mark.parametrize("attack", FABS)
def test_gives_the_image_itself_where_nothing_is_within_eps(
    attack: type[BoundarySearch], convolutional: Convolutional
) -> None:
    x, y = correct(convolutional.eval(), (2, 8, 8))
    assert torch.equal(attack(eps=1e-6, steps=5)(convolutional, x, y), x)
    assert torch.equal(attack(eps=0.3)(convolutional, x, (y + 1) % 4), x)  # all misclassified


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_frugal_agrees_where_the_boundary_is_smooth(norm: str) -> None:
    model = Bent()
    x, y = correct(model, (2, 8, 8))
    eps = float(walked(FabT(eps=0.0, norm=norm), model, x, y).distance.median())
    plain, frugal = (
        walked(FabT(eps=eps, norm=norm, frugal=frugal), model, x, y) for frugal in (False, True)
    )
    assert torch.equal(plain.broken, frugal.broken)
    wrong = model(frugal.x_found).argmax(1) != y
    assert torch.equal(wrong, frugal.broken)


@pytest.mark.parametrize("attack", FABS)
def test_patience_saves_steps_and_can_only_miss_breaks(attack: type[BoundarySearch]) -> None:
    model = Bent()
    x, y = correct(model, (2, 8, 8))
    eps = float(walked(attack(eps=0.0), model, x, y).distance.median())
    plain, patient = (
        walked(attack(eps=eps, patience=patience, frugal=patience > 0), model, x, y)
        for patience in (0.0, 2.0)
    )
    assert torch.equal(plain.broken, patient.broken)
    assert bool((patient.limit < 100)[~patient.broken].all())


def count_forwards(search: BoundarySearch, model: nn.Module, x: Tensor, y: Tensor) -> list[int]:
    """Rows of each forward of one advance from the start."""
    batch = search.batch(model, x, y, PerExample(0, torch.arange(len(x))))
    state, rows = search.begin(model, batch), []
    handle = model.register_forward_hook(lambda m, given, z: rows.append(len(z)))
    search.advance(model, state)
    handle.remove()
    return rows


def test_one_forward_serves_both_uses_where_nothing_is_misclassified() -> None:
    class Wall(nn.Module):
        """The gap is linear, but the label wins everywhere."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, -1.0]))

        def forward(self, x: Tensor) -> Tensor:
            s = x.flatten(1).mean(1)
            return torch.stack([1 + 0 * s, torch.tanh(0.1 * s)], 1) * self.w.abs()

    x, y = torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64)
    assert count_forwards(FabT(eps=0.1), Wall(), x, y) == [5]
    assert count_forwards(FabT(eps=0.0, frugal=True), Wall(), x, y) == [5]
    assert count_forwards(FabT(eps=0.1, steps=1), Wall(), x, y) == [5]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("attack", FABS)
def test_few_classes(attack: type[BoundarySearch], classes: int) -> None:
    model = linear(classes)
    x, y = correct(model)
    assert attack(eps=0.3, steps=5)(model, x, y).shape == x.shape
    assert FabT().rounds(classes) == classes - 1
    targets = {2: "1 target", 3: "2 targets"}[classes]
    assert FabT().remark(classes) == f"{classes} classes: {targets} instead of 9."
    assert FabT().remark(10) == ""


@pytest.mark.parametrize("attack", FABS)
def test_one_image_that_is_not_square(attack: type[BoundarySearch]) -> None:
    x = torch.rand(1, 2, 5, 9)
    assert attack(eps=0.3, steps=3)(Convolutional(), x, torch.tensor([1])).shape == x.shape


def test_stops_anywhere_and_goes_on_exactly(convolutional: Convolutional) -> None:
    model = convolutional.eval()
    x, y = correct(model, (2, 8, 8))
    search = FabT(eps=0.0)
    batch = search.batch(model, x, y, PerExample(0, torch.arange(len(x))))
    state = search.begin(model, batch, torch.tensor([0, 1, 2, 0, 1, 2]))
    for _ in range(5):
        search.advance(model, state)
    resumed = FabState.restore(state.tensors())
    for running in (state, resumed):
        for _ in range(5):
            search.advance(model, running)
    for name, value in state.tensors().items():
        assert torch.equal(value, resumed.tensors()[name]), name


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"steps": -1}, "steps must be 0 or more, got -1"),
        ({"alpha_max": 2.0}, r"alpha_max must lie in \[0, 1\], got 2"),
        ({"beta": -0.5}, r"beta must lie in \[0, 1\], got -0.5"),
        ({"eta": 0.9}, "eta must be 1 or more, got 0.9"),
        ({"patience": -1.0}, "patience must be 0 or more, got -1"),
    ],
)
@pytest.mark.parametrize("attack", FABS)
def test_wrong_settings(attack: type[BoundarySearch], given: dict[str, float], text: str) -> None:
    with pytest.raises(spat.UserError, match=text):
        attack(**given)
