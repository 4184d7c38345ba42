"""What every projection must do to any input; FAB's against a solved linear programme."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar
from torch import Tensor

from spat.attacks import _ball as ball
from spat.attacks._plane import shortest_move
from spat.rng import PerExample
from spat.threat import Norm, column, threat

NORMS: list[Norm] = ["linf", "l2"]
seeds = st.integers(0, 2**31)
budgets = st.floats(0.0, 1.0)
TIGHT = 1e-9
CALM = settings(max_examples=60, deadline=None)  # other work on the machine is no failure


SHAPES = [(2, 2, 3), (12,), (1, 1, 1), (3, 1, 5), (1, 7, 2), (2, 3)]


def batch(seed: int, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    """Clean images, some pixels in the corners of the box, and points anywhere around them.

    One to three of any shape, also none that an image has: a projection asks for rows only.
    """
    rng = torch.Generator().manual_seed(seed)
    shape = SHAPES[int(torch.randint(len(SHAPES), (), generator=rng))]
    n = int(torch.randint(1, 4, (), generator=rng))
    x = torch.rand(n, *shape, generator=rng, dtype=torch.float64)
    x = torch.where(torch.rand(x.shape, generator=rng) < 0.3, x.round(), x)
    return x, x + spread * torch.randn(x.shape, generator=rng, dtype=torch.float64)


def projections(norm: Norm, z: Tensor, x: Tensor, eps: Tensor) -> list[Tensor]:
    """Both implementations: of the threat model, and of the rows of a search."""
    return [threat(norm, eps).project(z, x), ball.project(norm, z, x, eps)]


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds, eps=budgets)
@CALM
def test_lands_in_the_ball_and_in_the_box(norm: Norm, seed: int, eps: float) -> None:
    x, z = batch(seed)
    budget = torch.full((len(x),), eps, dtype=x.dtype)
    for projected in projections(norm, z, x, budget):
        assert bool(((projected >= 0) & (projected <= 1)).all())
        assert bool((threat(norm, eps).distance(projected, x) <= eps + TIGHT).all())


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds, eps=budgets)
@CALM
def test_leaves_what_is_inside(norm: Norm, seed: int, eps: float) -> None:
    x, z = batch(seed)
    budget = torch.full((len(x),), eps, dtype=x.dtype)
    for inside in projections(norm, z, x, budget):
        for again in projections(norm, inside, x, budget):
            torch.testing.assert_close(again, inside, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_each_row_keeps_to_its_own_budget(norm: Norm, seed: int) -> None:
    x, z = batch(seed)
    eps = torch.rand(len(x), generator=torch.Generator().manual_seed(seed)).double()
    for k, projected in enumerate(projections(norm, z, x, eps)):
        for i in range(len(x)):
            alone = projections(norm, z[i : i + 1], x[i : i + 1], eps[i : i + 1])[k]
            torch.testing.assert_close(projected[i : i + 1], alone, rtol=0, atol=0)


@given(seed=seeds, eps=budgets)
@CALM
def test_linf_is_the_nearest_point(seed: int, eps: float) -> None:
    """Pixel by pixel the nearest of the interval, so nearest in every norm."""
    x, z = batch(seed)
    low, high = np.maximum(x.numpy() - eps, 0), np.minimum(x.numpy() + eps, 1)
    for projected in projections("linf", z, x, torch.full((len(x),), eps, dtype=x.dtype)):
        np.testing.assert_allclose(projected.numpy(), np.clip(z.numpy(), low, high), atol=TIGHT)


@given(seed=seeds, eps=budgets)
@CALM
def test_l2_scales_the_change_and_then_clips(seed: int, eps: float) -> None:
    x, z = batch(seed)
    change = (z - x).numpy()
    length = np.sqrt((change**2).reshape(len(x), -1).sum(1)).reshape(-1, *[1] * (x.ndim - 1))
    expected = np.clip(x.numpy() + change * np.minimum(1, eps / length), 0, 1)
    for projected in projections("l2", z, x, torch.full((len(x),), eps, dtype=x.dtype)):
        np.testing.assert_allclose(projected.numpy(), expected, atol=1e-8)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds, eps=budgets)
@CALM
def test_float32_stays_in_the_box_and_within_a_rounding_of_the_ball(
    norm: Norm, seed: int, eps: float
) -> None:
    x, z = (v.float() for v in batch(seed))
    for projected in projections(norm, z, x, torch.full((len(x),), eps)):
        assert bool(((projected >= 0) & (projected <= 1)).all())
        assert bool((threat(norm, eps).distance(projected, x) <= eps + 1e-6).all())


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds, eps=budgets)
@CALM
def test_a_budget_is_one_number_or_one_a_row(norm: Norm, seed: int, eps: float) -> None:
    x, z = batch(seed)
    one = threat(norm, eps).project(z, x)
    for same in (torch.tensor(eps, dtype=x.dtype), torch.full((len(x),), eps, dtype=x.dtype)):
        torch.testing.assert_close(threat(norm, same).project(z, x), one, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_a_move_is_the_steepest_step_and_then_the_projection(norm: Norm, seed: int) -> None:
    """Bit for bit, also in float32, in the corners of the box and where the gradient is zero."""
    for x, z in (batch(seed), [v.float() for v in batch(seed)]):
        rng = torch.Generator().manual_seed(seed)
        eps, size = torch.rand(2, len(x), generator=rng).to(x)
        gradient = (torch.randn(x.shape, generator=rng) * (z > 0)).to(x)
        kind, step = threat(norm, eps), column(size, x)
        expected = kind.project(z + step * kind.steepest(gradient), x)
        assert torch.equal(kind.mover(x, step)(z.clone(), gradient), expected)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_the_steepest_step_has_length_one_and_the_dual_norm_as_gain(norm: Norm, seed: int) -> None:
    _, g = batch(seed)
    for step in (ball.steepest(norm, g), threat(norm, 0.1).steepest(g)):
        torch.testing.assert_close(ball.size(norm, step), torch.ones(len(g)).double())
        flat = g.flatten(1)
        dual = flat.abs().sum(1) if norm == "linf" else flat.square().sum(1).sqrt()
        torch.testing.assert_close((step * g).flatten(1).sum(1), dual)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_distance_is_the_norm_that_numpy_computes(norm: Norm, seed: int) -> None:
    x, z = batch(seed)
    order = {"linf": np.inf, "l2": 2}[norm]
    expected = np.linalg.norm((z - x).flatten(1).numpy(), ord=order, axis=1)
    for found in (threat(norm, 0.1).distance(z, x), ball.size(norm, z - x)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_a_start_lies_in_the_ball_and_each_row_has_its_own(norm: Norm, seed: int) -> None:
    x, _ = batch(seed)
    eps = torch.rand(len(x), generator=torch.Generator().manual_seed(seed)).double()
    source = PerExample(seed, torch.arange(len(x)))
    start = threat(norm, eps).start(x, source)
    assert bool((threat(norm, eps).distance(x + start, x) <= eps + TIGHT).all())
    for i in range(len(x)):
        at = torch.tensor([i])
        alone = threat(norm, eps[at]).start(x[at], source[at])
        torch.testing.assert_close(start[at], alone, rtol=0, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_starts_are_uniform_in_the_ball(norm: Norm) -> None:
    """Of d pixels: the share within r eps of the middle is r^d, in either norm."""
    x, eps, d = torch.zeros(20_000, 3), 0.5, 3
    for source in (PerExample(0, torch.arange(len(x))), torch.Generator().manual_seed(0)):
        start = threat(norm, eps).start(x, source)
        size = ball.size(norm, start) / eps
        for r in (0.3, 0.6, 0.9):
            assert float((size <= r).float().mean()) == pytest.approx(r**d, abs=0.015)
        assert bool((start.mean(0).abs() < 0.01).all())


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_gradient_moves_nothing(norm: Norm) -> None:
    assert not ball.steepest(norm, torch.zeros(2, 3, 4, 4)).any()


def planes(seed: int, n: int = 3, d: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Points, normals (some entries zero) and needs that the box may or may not meet."""
    rng = torch.Generator().manual_seed(seed)
    p = torch.rand(n, d, generator=rng, dtype=torch.float64)
    p = torch.where(torch.rand(p.shape, generator=rng) < 0.3, p.round(), p)
    w = torch.randn(n, d, generator=rng, dtype=torch.float64)
    w = torch.where(torch.rand(p.shape, generator=rng) < 0.2, 0.0, w)
    return p, w, torch.randn(n, generator=rng, dtype=torch.float64)


def reach(p: Tensor, w: Tensor, need: Tensor) -> Tensor:
    """[n] the most that w.d can become in the direction of need."""
    room = torch.where(w * need[:, None].sign() > 0, 1 - p, p)
    return (w.abs() * room).sum(1)


def least_linf(p: np.ndarray, w: np.ndarray, need: float) -> float:
    """min t: w.d = need, -t <= d <= t, 0 <= p + d <= 1."""
    d = len(p)
    both = np.vstack([np.eye(d), -np.eye(d)])
    solved = linprog(
        c=[*np.zeros(d), 1.0],
        A_ub=np.hstack([both, -np.ones((2 * d, 1))]),
        b_ub=np.zeros(2 * d),
        A_eq=[[*w, 0.0]],
        b_eq=[need],
        bounds=[*zip(-p, 1 - p, strict=True), (0, None)],
    )
    return float(solved.fun)


def least_l2(p: np.ndarray, w: np.ndarray, need: float) -> float:
    """The square root of the maximum of the dual, a concave function of one number.

    g(m) = m need + min over d in the box of |d|^2 / 2 - m w.d, and min |d|^2 / 2 = max g.
    """

    def minus_dual(m: float) -> float:
        d = np.clip(m * w, -p, 1 - p)
        return -float(m * need + 0.5 * d @ d - m * w @ d)

    solved = minimize_scalar(minus_dual, bounds=(-1e3, 1e3), options={"xatol": 1e-12})
    return float(np.sqrt(max(-2 * solved.fun, 0)))


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_the_move_to_the_hyperplane_is_the_shortest(norm: Norm, seed: int) -> None:
    p, w, need = planes(seed)
    need = need.sign() * torch.minimum(need.abs(), 0.9 * reach(p, w, need))
    d = shortest_move(norm, p, w, need)
    assert bool(((p + d >= -TIGHT) & (p + d <= 1 + TIGHT)).all())
    torch.testing.assert_close((w * d).sum(1), need, rtol=0, atol=1e-9)
    solve = {"linf": least_linf, "l2": least_l2}[norm]
    for i in range(len(p)):
        least = solve(p[i].numpy(), w[i].numpy(), float(need[i]))
        assert float(ball.size(norm, d[i : i + 1])) == pytest.approx(least, abs=1e-5)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_an_unreachable_hyperplane_is_approached_as_far_as_the_box_allows(
    norm: Norm, seed: int
) -> None:
    p, w, need = planes(seed)
    need = need.sign() * (reach(p, w, need) + 1)
    d = shortest_move(norm, p, w, need)
    torch.testing.assert_close((w * d).sum(1).abs(), reach(p, w, need))


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds)
@CALM
def test_float32_is_as_good(norm: Norm, seed: int) -> None:
    p, w, need = planes(seed, n=2, d=300)
    exact = shortest_move(norm, p, w, need)
    single = shortest_move(norm, p.float(), w.float(), need.float())
    torch.testing.assert_close(single.double(), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_nothing_needed_or_nothing_to_push_moves_nothing(norm: Norm) -> None:
    p, w, need = planes(0)
    assert not shortest_move(norm, p, w, torch.zeros_like(need)).any()
    assert not shortest_move(norm, p, torch.zeros_like(w), need).any()
