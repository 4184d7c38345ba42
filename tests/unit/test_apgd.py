"""APGD against closed forms, its step rule, few classes, and rows that come and go."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional, Linear
from spat.attacks._search import Batch, Search
from spat.attacks.apgd_ce import ApgdCE
from spat.attacks.apgd_dlr import ApgdDLR
from spat.attacks.apgd_t import ApgdT
from spat.rng import PerExample

APGDS = [ApgdCE, ApgdDLR, ApgdT]
EPS = 0.1


def linear(classes: int, seed: int = 1, pixels: int = 12) -> Linear:
    rng = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, pixels, generator=rng)
    return Linear(weight, torch.zeros(classes))


def correct(
    model: nn.Module, n: int = 6, shape: tuple[int, ...] = (3, 2, 2)
) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(2))
    x = x.to(next(model.parameters()))
    x[0], x[1] = 0.0, 1.0  # in two corners of the box
    with torch.no_grad():
        return x, model(x).argmax(1)


def prepared(attack: Search, model: nn.Module, x: Tensor, y: Tensor) -> Batch:
    model.eval()
    return attack.batch(model, x, y, PerExample(0, torch.arange(len(x))))


@pytest.mark.parametrize("attack", APGDS)
def test_reaches_the_linear_optimum(attack: type[Search]) -> None:
    model = linear(2)
    x, y = correct(model)
    push = (model.weight[1 - y] - model.weight[y]).sign().reshape(x.shape)
    best = (x + EPS * push).clamp(0, 1)
    search = attack(eps=EPS)
    state = search.begin(model, prepared(search, model, x, y))
    for _ in range(100):
        search.advance(model, state)
    gap = model(best) - model(state.best)
    assert torch.allclose(gap, torch.zeros_like(gap), atol=1e-4)


def test_reaches_the_l2_optimum_away_from_the_box() -> None:
    model = linear(2)
    x = torch.full((3, 3, 2, 2), 0.5)
    y = model(x).argmax(1)
    push = model.weight[1 - y] - model.weight[y]
    best = x + (EPS * push / push.norm(dim=1, keepdim=True)).reshape(x.shape)
    assert torch.allclose(ApgdCE(eps=EPS, norm="l2")(model, x, y), best, atol=1e-4)


@pytest.mark.parametrize("attack", APGDS)
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_breaks_a_linear_model_exactly_when_it_can_be(attack: type[Search], factor: float) -> None:
    model = linear(4)
    x = 0.45 + 0.1 * torch.rand(8, 3, 2, 2, generator=torch.Generator().manual_seed(5))
    z, y = model(x).detach(), model(x).argmax(1)
    gaps = (z.gather(1, y[:, None]) - z) / (
        model.weight[y][:, None] - model.weight[None]
    ).abs().sum(2)
    eps = factor * gaps.scatter(1, y[:, None], torch.inf).amin(1).detach()
    broken = model(attack(eps=eps)(model, x, y)).argmax(1) != y
    assert bool((broken == (factor > 1)).all())


@pytest.mark.parametrize("attack", APGDS)
def test_a_row_leaves_with_the_step_that_broke_it(attack: type[Search]) -> None:
    model, rng = linear(4), torch.Generator().manual_seed(5)
    x = 0.45 + 0.1 * torch.rand(8, 3, 2, 2, generator=rng)
    search, y = attack(eps=0.3), model(x).argmax(1)
    with torch.no_grad():
        batch = search.batch(model, x, y, rng)
    found = search.search(model, batch)
    assert bool(found.broken.all())
    assert 0 < int(found.step.max()) < 5  # the first step crosses the ball


class Bent(nn.Module):
    """A random network with smooth, curved boundaries close to any image."""

    def __init__(self, classes: int = 5, pixels: int = 128) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(6)
        self.inner = nn.Parameter(torch.randn(32, pixels, generator=rng) / pixels**0.5)
        self.outer = nn.Parameter(torch.randn(classes, 32, generator=rng))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((x.flatten(1) - 0.5) @ self.inner.T * 3) @ self.outer.T


def literal(search: Search, model: nn.Module, x: Tensor, z: Tensor, y: Tensor, t: Tensor) -> float:
    """A slow twin: Auto-PGD in Linf for one image from the start z, with lists for its history."""

    def look(z: Tensor) -> tuple[float, Tensor]:
        z = z.detach().requires_grad_()
        loss = search.loss(model(z), y, t).sum()
        (gradient,) = torch.autograd.grad(loss, z)
        return float(loss.detach()), gradient

    def clip(z: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(z, x - EPS), x + EPS).clamp(0, 1)

    n, step = search.steps, 2 * EPS
    loss, gradient = look(z)
    best, best_loss, best_gradient, checked, halved = z, loss, gradient, loss, True
    losses, last, period, before = [0.0], 0, int(0.22 * n), z
    for k in range(1, n + 1):
        ahead = clip(z + step * gradient.sign())
        mixed = clip(z + 0.75 * (ahead - z) + 0.25 * (z - before))
        before, z = z, ahead if k == 1 else mixed
        loss, gradient = look(z)
        losses.append(loss)
        if loss > best_loss:
            best, best_loss, best_gradient = z, loss, gradient
        if k == last + period:
            rises = sum(losses[j] > losses[j - 1] for j in range(last + 1, k + 1))
            seldom = rises <= 0.75 * period
            stuck = not halved and best_loss <= checked
            halved, checked, last = seldom or stuck, best_loss, k
            period = max(period - int(0.03 * n), int(0.06 * n))
            if halved:
                step, z, gradient = step / 2, best, best_gradient
    return best_loss


@pytest.mark.parametrize("round", [0, 2])
@pytest.mark.parametrize("attack", APGDS)
def test_is_the_literal_algorithm(attack: type[Search], round: int) -> None:
    model = Bent().double()
    x, y = correct(model, shape=(2, 8, 8))
    search = attack(eps=EPS)
    state = search.begin(model, prepared(search, model, x, y), round)
    start = state.z
    for _ in range(100):
        search.advance(model, state)
    for i in range(len(x)):
        at = slice(i, i + 1)
        expected = literal(search, model, x[at], start[at], y[at], state.target[at])
        assert float(state.loss_best[i]) == pytest.approx(expected, abs=1e-9)


def test_the_losses_are_the_published_ones() -> None:
    z = torch.tensor([[5.0, 3.0, 2.0, 1.5, -1.0], [0.0, 4.0, 1.0, -2.0, 3.0]])
    y, t = torch.tensor([0, 4]), torch.tensor([2, 3])
    dlr = ApgdDLR().loss(z, y, y)
    torch.testing.assert_close(dlr, torch.tensor([-(5 - 3) / (5 - 2), -(3 - 4) / (4 - 1)]))
    targeted = ApgdT().loss(z, y, t)
    expected = [-(5 - 2) / (5 - (2 + 1.5) / 2), -(3 + 2) / (4 - (1 + 0) / 2)]
    torch.testing.assert_close(targeted, torch.tensor(expected))
    torch.testing.assert_close(
        ApgdCE().loss(z, y, y), nn.functional.cross_entropy(z, y, reduction="none")
    )


def test_starts_at_the_edge_of_the_ball() -> None:
    model = linear(3)
    x = torch.full((4, 3, 2, 2), 0.5)
    y = model(x).argmax(1)
    for norm, search in (("linf", ApgdCE(eps=EPS)), ("l2", ApgdCE(eps=EPS, norm="l2"))):
        moved = search.begin(model, prepared(search, model, x, y)).z - x
        size = moved.flatten(1).abs().amax(1) if norm == "linf" else moved.flatten(1).norm(dim=1)
        torch.testing.assert_close(size, torch.full((4,), EPS))


def test_checkpoints_of_one_hundred_steps(convolutional: Convolutional) -> None:
    """Iterations 22, 41, 57, 70, 80, 87, 93, 99, as published."""
    x, y = correct(convolutional.eval(), shape=(2, 8, 8))
    search = ApgdCE(eps=EPS)
    state, seen = search.begin(convolutional, prepared(search, convolutional, x, y)), []
    for k in range(1, 101):
        search.advance(convolutional, state)
        if int(state.waited[0]) == 0:
            seen.append(k)
    assert seen == [22, 41, 57, 70, 80, 87, 93, 99]


def test_the_step_halves_only_at_checkpoints_and_returns_to_the_best_point(
    convolutional: Convolutional,
) -> None:
    x, y = correct(convolutional.eval(), shape=(2, 8, 8))
    search = ApgdCE(eps=EPS)
    state = search.begin(convolutional, prepared(search, convolutional, x, y))
    size = state.step_size
    for _ in range(100):
        search.advance(convolutional, state)
        halved = state.step_size < size
        at_checkpoint = state.waited == 0
        assert bool((at_checkpoint | ~halved).all())
        assert torch.equal(state.z[halved], state.z_best[halved])
        assert torch.allclose(state.step_size[halved], size[halved] / 2)
        size = state.step_size
    assert bool((size < 2 * EPS).any())


def test_best_loss_never_falls_and_is_that_of_the_best_point(convolutional: Convolutional) -> None:
    x, y = correct(convolutional.eval(), shape=(2, 8, 8))
    search = ApgdDLR(eps=EPS, steps=30)
    state = search.begin(convolutional, prepared(search, convolutional, x, y))
    for _ in range(30):
        before = state.loss_best
        search.advance(convolutional, state)
        assert bool((state.loss_best >= before).all())
    again = search.loss(convolutional(state.best), y, y)
    assert torch.allclose(again, state.loss_best, atol=1e-6)


def test_rows_of_any_age_share_a_batch(convolutional: Convolutional) -> None:
    """A batch of two rows, refilled from a queue, gives what each row gives alone."""
    model = convolutional.eval().double()
    x, y = correct(model, n=5, shape=(2, 8, 8))
    search = ApgdCE(eps=0.002, steps=12)
    batch = prepared(search, model, x, y)
    alone = search.search(model, batch)
    state, waiting = search.begin(model, batch.take(torch.tensor([0]))), [1, 2, 3, 4]
    seen = {}
    while len(state) or waiting:
        while len(state) < 2 and waiting:
            state.append(search.begin(model, batch.take(torch.tensor([waiting.pop(0)]))))
        search.advance(model, state)
        for row in (~state.active).nonzero().flatten().tolist():
            seen[int(state.index[row])] = (state.best[row], state.broken[row])
        state.keep(state.active)
    assert len(seen) == 5
    for i, (best, broken) in seen.items():
        assert bool(broken) == bool(alone.broken[i])
        if not broken:
            assert torch.allclose(best, alone.x_adv[i], atol=1e-12)


def test_stops_anywhere_and_goes_on_exactly(convolutional: Convolutional) -> None:
    model = convolutional.eval()
    x, y = correct(model, shape=(2, 8, 8))
    search = ApgdT(eps=EPS, steps=20)
    state = search.begin(model, prepared(search, model, x, y), torch.tensor([0, 1, 2, 0, 1, 2]))
    for _ in range(7):
        search.advance(model, state)
    saved = state.tensors()
    resumed = type(state).restore(saved)
    for running in (state, resumed):
        for _ in range(13):
            search.advance(model, running)
    for name, value in state.tensors().items():
        assert torch.equal(value, resumed.tensors()[name]), name


@pytest.mark.parametrize(("classes", "rounds"), [(2, 1), (3, 2), (4, 3), (10, 9), (30, 9)])
def test_as_many_targets_as_there_are_other_classes(classes: int, rounds: int) -> None:
    attack, model = ApgdT(eps=0.3, steps=10), linear(classes)
    assert attack.rounds(classes) == rounds
    x, y = correct(model)
    batch = prepared(attack, model, x, y)
    aimed = torch.stack([batch.targets(torch.full_like(y, k + 1)) for k in range(rounds)], 1)
    assert bool((aimed != y[:, None]).all())
    ordered = batch.clean.gather(1, aimed)
    assert bool((ordered[:, :-1] >= ordered[:, 1:]).all())
    assert attack(model, x, y).shape == x.shape


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("attack", [ApgdDLR, ApgdT])
def test_few_classes_get_the_margin_and_a_remark(attack: type[Search], classes: int) -> None:
    model = linear(classes)
    x, y = correct(model)
    z = model(x).detach()
    search = attack(eps=EPS)
    if attack is ApgdDLR and classes == 3:
        assert search.remark(classes) == ""
        return
    other = prepared(search, model, x, y).targets(torch.ones_like(y))
    assert torch.allclose(search.loss(z, y, other), spat.losses.margin(z, y).neg())
    assert "the margin stands in" in search.remark(classes)
    assert search.remark(10) == ""


@pytest.mark.parametrize("attack", APGDS)
def test_all_misclassified_or_all_robust(
    attack: type[Search], convolutional: Convolutional
) -> None:
    x, y = correct(convolutional.eval(), shape=(2, 8, 8))
    wrong = (y + 1) % 4
    assert torch.equal(attack(eps=EPS)(convolutional, x, wrong), x)
    tiny = attack(eps=1e-7, steps=3)
    assert not tiny.search(convolutional, prepared(tiny, convolutional, x, y)).broken.any()


@pytest.mark.parametrize("attack", APGDS)
@pytest.mark.parametrize("shape", [(2, 5, 9), (2, 8, 8)])
def test_one_image_of_any_shape(attack: type[Search], shape: tuple[int, ...]) -> None:
    model = Convolutional()
    x = torch.rand(1, *shape)
    assert attack(eps=EPS, steps=3)(model, x, torch.tensor([0])).shape == x.shape


def test_restarts_go_on_only_with_what_is_left(convolutional: Convolutional) -> None:
    x, y = correct(convolutional.eval(), shape=(2, 8, 8))
    once, twice = ApgdCE(eps=0.05, steps=5), ApgdCE(eps=0.05, steps=5, restarts=2)
    first = once.search(convolutional, prepared(once, convolutional, x, y))
    both = twice.search(convolutional, prepared(twice, convolutional, x, y))
    assert torch.equal(first.x_adv[first.broken], both.x_adv[first.broken])
    assert bool((both.score >= first.score).all())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"steps": -1}, "steps must be 0 or more, got -1"),
        ({"rho": 2.0}, r"rho must lie in \[0, 1\], got 2"),
    ],
)
@pytest.mark.parametrize("attack", APGDS)
def test_wrong_settings(attack: type[Search], given: dict[str, float], text: str) -> None:
    with pytest.raises(spat.UserError, match=text):
        attack(**given)


def test_wrong_counts() -> None:
    with pytest.raises(spat.UserError, match="restarts must be 1 or more, got 0"):
        ApgdCE(restarts=0)
    with pytest.raises(spat.UserError, match="targets must be 1 or more, got 0"):
        ApgdT(targets=0)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ApgdCE().steps = 3  # type: ignore[misc]
