"""MIM against its recurrence written out and closed forms; MD's terms, steps and pairs of runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional, Linear
from spat.attacks.md import MD, MdState
from spat.attacks.mim import MIM
from spat.rng import PerExample

EPS = 0.1


def linear(classes: int = 2) -> Linear:
    rng = torch.Generator().manual_seed(1)
    return Linear(torch.randn(classes, 12, generator=rng), torch.zeros(classes))


def correct(model: nn.Module, shape: tuple[int, ...] = (3, 2, 2)) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, *shape, generator=torch.Generator().manual_seed(2))
    x[0], x[1] = 0.0, 1.0
    with torch.no_grad():
        return x, model(x).argmax(1)


def optimum(model: Linear, x: Tensor, y: Tensor) -> Tensor:
    push = (model.weight[1 - y] - model.weight[y]).sign().reshape(x.shape)
    return (x + EPS * push).clamp(0, 1)


def test_mim_reaches_the_linear_optimum() -> None:
    model = linear()
    x, y = correct(model)
    for attack in (MIM(eps=EPS), MIM(eps=EPS, steps=1), MIM(eps=EPS, steps=10, step_size=EPS / 10)):
        assert torch.allclose(attack(model, x, y), optimum(model, x, y), atol=1e-6)


def test_mim_reaches_the_l2_optimum() -> None:
    model = linear()
    x = torch.full((3, 3, 2, 2), 0.5)
    y = model(x).argmax(1)
    push = model.weight[1 - y] - model.weight[y]
    best = x + (EPS * push / push.norm(dim=1, keepdim=True)).reshape(x.shape)
    assert torch.allclose(MIM(eps=EPS, norm="l2")(model, x, y), best, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_mim_is_its_recurrence(decay: float, convolutional: Convolutional) -> None:
    """A slow twin, one example at a time: normalised first, accumulated then, the sign last."""
    model = convolutional.double().eval()
    rng = torch.Generator().manual_seed(4)
    x, y = torch.rand(3, 2, 8, 8, generator=rng).double(), torch.tensor([0, 1, 2])
    expected = []
    for i in range(3):
        z, m = x[i : i + 1], torch.zeros(1, 2, 8, 8).double()
        for _ in range(5):
            z = z.detach().requires_grad_()
            loss = nn.functional.cross_entropy(model(z), y[i : i + 1])
            (g,) = torch.autograd.grad(loss, z)
            m = decay * m + g / g.abs().mean()
            z = torch.clamp(z + 0.03 * m.sign(), x[i] - EPS, x[i] + EPS).clamp(0, 1)
        expected.append(z.detach())
    attack = MIM(eps=EPS, steps=5, step_size=0.03, decay=decay)
    torch.testing.assert_close(attack(model, x, y), torch.cat(expected), rtol=0, atol=1e-12)


class Flat(nn.Module):
    """No gradient on the first look at an image, a linear one after: a plateau to get over."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.looks = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.looks += 1
        logits: Tensor = self.inner(x)
        return logits * (0.0 if self.looks == 2 else 1.0)  # the first look is the clean check


def test_a_zero_gradient_does_not_end_mim() -> None:
    model = Flat()
    x, y = correct(model.inner)
    x_adv = MIM(eps=EPS, steps=4)(model, x, y)
    assert torch.allclose(x_adv, optimum(model.inner, x, y), atol=1e-6)


def test_mim_of_no_steps_or_no_budget_is_the_identity() -> None:
    model = linear()
    x, y = correct(model)
    assert torch.equal(MIM(eps=EPS, steps=0)(model, x, y), x)
    assert torch.equal(MIM(eps=0.0)(model, x, y), x)


def begun(search: MD, model: nn.Module, x: Tensor, y: Tensor, round: int) -> MdState:
    model.eval()
    return search.begin(
        model, search.batch(model, x, y, PerExample(0, torch.arange(len(x)))), round
    )


@pytest.mark.parametrize("round", [0, 1])
def test_md_climbs_one_logit_and_then_the_margin(round: int) -> None:
    model = linear(4)
    x = torch.full((5, 3, 2, 2), 0.5)
    x += 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    search = MD(eps=0.01, steps=10)
    state = begun(search, model, x, y, round)
    w = model.weight.detach()
    for step in range(10):
        rival = spat.losses.runner_up(model(state.z).detach(), y)
        if step == 0:
            expected = w[y]
        elif step < 5:
            expected = w[rival] if round else -w[y]
        else:
            expected = w[rival] - w[y]
        torch.testing.assert_close(state.gradient.flatten(1), expected)
        search.advance(model, state)


def test_md_steps_fall_from_2_eps_along_a_cosine_in_either_half() -> None:
    model = linear()
    x, y = correct(model)
    search = MD(eps=EPS, steps=8)
    state, sizes = begun(search, model, x, y, 0), []
    for _ in range(8):
        sizes.append(float(search._step_size(state)[0]))
        search.advance(model, state)
    half = [EPS * (1 + math.cos(math.pi * k / 4)) for k in range(4)]
    assert sizes == pytest.approx(half + half, abs=1e-6)
    assert sizes[0] == pytest.approx(2 * EPS)


def test_md_reaches_the_linear_optimum() -> None:
    model = linear()
    x, y = correct(model)
    gap = model(optimum(model, x, y)) - model(begun_and_done(MD(eps=EPS), model, x, y).z)
    assert torch.allclose(gap, torch.zeros_like(gap), atol=1e-4)


def begun_and_done(search: MD, model: nn.Module, x: Tensor, y: Tensor) -> MdState:
    state = begun(search, model, x, y, 0)
    for _ in range(search.steps):
        search.advance(model, state)
    return state


class Imbalanced(nn.Module):
    """The logit of the rival is flat at the image, that of the label is steep."""

    def forward(self, x: Tensor) -> Tensor:
        v = x.flatten(1)
        own = 3.0 - 40 * (v[:, 1] - 0.5)
        rival = 20 * torch.tanh(50 * (v[:, 0] - 0.9)) + 15
        return torch.stack([own, rival], 1)


def test_md_counts_any_misclassified_iterate_and_tries_both_terms() -> None:
    search = MD(restarts=2)
    assert search.rounds(10) == 4
    model, x = Imbalanced(), torch.full((3, 1, 2, 2), 0.5)
    y = model(x).argmax(1)
    x_adv = MD(eps=0.45)(model, x, y, rng=0)
    assert bool((model(x_adv).argmax(1) != y).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_md_all_misclassified_or_all_robust(norm: str, convolutional: Convolutional) -> None:
    x, y = correct(convolutional.eval(), (2, 8, 8))
    assert torch.equal(MD(norm=norm)(convolutional, x, (y + 1) % 4), x)
    x_adv = MD(eps=1e-6, norm=norm, steps=4)(convolutional, x, y)
    assert bool((convolutional(x_adv).argmax(1) == y).all())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("attack", [MIM(eps=EPS, steps=2), MD(eps=EPS, steps=2)])
def test_few_classes_and_one_image_that_is_not_square(attack: MIM | MD, classes: int) -> None:
    x = torch.rand(1, 2, 5, 9)
    assert attack(Convolutional(classes), x, torch.tensor([1]), rng=0).shape == x.shape


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("mim", {"steps": -1}, "steps must be 0 or more, got -1"),
        ("mim", {"step_size": -0.1}, "step_size must be 0 or more, got -0.1"),
        ("mim", {"decay": -1.0}, "decay must be 0 or more, got -1"),
        ("md", {"steps": -1}, "steps must be 0 or more, got -1"),
        ("md", {"restarts": 0}, "restarts must be 1 or more, got 0"),
    ],
)
def test_wrong_settings(name: str, given: dict[str, float], text: str) -> None:
    with pytest.raises(spat.UserError, match=text):
        spat.attack(name, **given)
