"""PGD against closed forms, and each of its settings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional, Linear
from spat.attacks.pgd import PGD
from spat.rng import PerExample

EPS = 0.1


@pytest.fixture
def linear() -> Linear:
    rng = torch.Generator().manual_seed(1)
    w = torch.randn(2, 12, generator=rng)
    return Linear(w, torch.tensor([0.1, -0.1]))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(2)
    x = torch.rand(7, 3, 2, 2, generator=rng)
    x[0], x[1] = 0.0, 1.0  # in two corners of the box
    return x, torch.tensor([0, 1, 0, 1, 0, 1, 0])


def optimum_linf(model: Linear, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """Of a two-class linear model: every pixel as far against the margin as ball and box allow."""
    push = (model.weight[1 - y] - model.weight[y]).sign().reshape(x.shape)
    return (x + eps * push).clamp(0, 1)


@pytest.mark.parametrize("start", ["zero", "uniform", "normal"])
@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize("steps", [20, 40])
def test_reaches_the_linear_optimum(
    linear: Linear, batch: tuple[Tensor, Tensor], start: str, loss: str, steps: int
) -> None:
    x, y = batch
    attack = spat.attack("pgd", eps=EPS, steps=steps, start=start, loss=loss)
    assert torch.allclose(attack(linear, x, y, rng=0), optimum_linf(linear, x, y, EPS), atol=1e-6)


def test_fgsm_is_the_linear_optimum_in_one_step(
    linear: Linear, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    assert torch.allclose(
        spat.attack("fgsm", eps=EPS)(linear, x, y), optimum_linf(linear, x, y, EPS), atol=1e-7
    )


def test_l2_optimum_away_from_the_box(linear: Linear) -> None:
    x = torch.full((3, 3, 2, 2), 0.5)
    y = torch.tensor([0, 1, 0])
    push = linear.weight[1 - y] - linear.weight[y]
    best = x + (0.2 * push / push.norm(dim=1, keepdim=True)).reshape(x.shape)
    x_adv = spat.attack("pgd", eps=0.2, norm="l2", start="zero")(linear, x, y)
    assert torch.allclose(x_adv, best, atol=1e-6)


def test_default_step_reaches_across_the_ball() -> None:
    """2 eps / steps: the paper's eps/10 for PGD-20, and never too short to cross the ball."""
    for steps in (10, 20, 100):
        attack = PGD(eps=EPS, steps=steps)
        assert steps * attack._step() == pytest.approx(2 * EPS)
    assert PGD(eps=EPS, steps=20)._step() == pytest.approx(EPS / 10)


def test_iterates_are_the_literal_ones(convolutional: Convolutional) -> None:
    """A slow twin: the textbook loop, written out, in float64."""
    model = convolutional.double().eval()
    rng = torch.Generator().manual_seed(4)
    x, y = torch.rand(3, 2, 8, 8, generator=rng).double(), torch.tensor([0, 1, 2])
    noise = 0.05 * (2 * torch.rand(x.shape, generator=rng).double() - 1)
    seen: list[Tensor] = []
    fast = PGD(eps=0.05, steps=4, step_size=0.02).craft(
        model, x, y, noise=noise, watch=lambda rows, z: seen.append(z)
    )
    slow, logits = (x + noise).clamp(0, 1), []
    for _ in range(4):
        slow = slow.detach().requires_grad_()
        logits.append(model(slow))
        nn.functional.cross_entropy(logits[-1], y).backward()
        assert slow.grad is not None
        step = slow.detach() + 0.02 * slow.grad.sign()
        slow = torch.min(torch.max(step, x - 0.05), x + 0.05).clamp(0, 1)
    assert torch.allclose(fast, slow, atol=1e-12)
    assert torch.allclose(torch.stack(seen), torch.stack(logits), atol=1e-12)


def test_normal_start_is_a_thousandth() -> None:
    x = torch.full((4, 1, 50, 50), 0.5)
    model = Linear(torch.zeros(2, 2500), torch.zeros(2))
    x_adv = PGD(eps=EPS, steps=0, start="normal")(model, x, torch.zeros(4).long(), rng=0)
    assert float((x_adv - x).std()) == pytest.approx(1e-3, rel=0.05)


def test_uniform_start_fills_the_ball() -> None:
    x = torch.full((4, 1, 50, 50), 0.5)
    model = Linear(torch.zeros(2, 2500), torch.zeros(2))
    moved = PGD(eps=EPS, steps=0)(model, x, torch.zeros(4).long(), rng=0) - x
    assert float(moved.std()) == pytest.approx(EPS / 3**0.5, rel=0.05)
    assert float(moved.max()) > 0.99 * EPS


def test_zero_gradient_does_not_move(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    flat = Linear(torch.zeros(2, 12), torch.zeros(2))
    assert torch.equal(spat.attack("pgd", eps=EPS, start="zero")(flat, x, y), x)
    assert torch.equal(spat.attack("pgd", eps=EPS, norm="l2", start="zero")(flat, x, y), x)


def test_scale_of_the_loss_points_at_the_hardest_class() -> None:
    """Cosines (0.6; 0.3; eight of -0.1): the hard rival holds 15.7% of the false mass at scale 1
    and 48.0% at 5, so only the scaled attack follows it."""
    z = torch.tensor([[0.6, 0.3] + [-0.1] * 8], dtype=torch.float64)
    shares = {}
    for scale in (1.0, 5.0):
        variable = z.clone().requires_grad_()
        (g,) = torch.autograd.grad(
            PGD(loss_scale=scale).named_loss(scale * variable, torch.tensor([0]), None).sum(),
            variable,
        )
        shares[scale] = float(g[0, 1] / g[0, 1:].sum())
    assert shares[1.0] == pytest.approx(0.157, abs=5e-4)
    assert shares[5.0] == pytest.approx(0.480, abs=5e-4)


def test_loss_scale_changes_the_attack(
    convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    plain = PGD(eps=EPS, steps=5)(convolutional, x, y, rng=0)
    scaled = PGD(eps=EPS, steps=5, loss_scale=40.0)(convolutional, x, y, rng=0)
    assert not torch.equal(plain, scaled)


class Trap(nn.Module):
    """The loss climbs away from x = 0.5 on both sides, but is misclassified on one side only."""

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(1)[:, 0] - 0.5
        return torch.stack([torch.zeros_like(t), torch.where(t > 0, 40 * t - 1, -15 * t - 1)], 1)


def test_restarts_keep_the_worst_of_each_example() -> None:
    """One start climbs to the wrong side half of the time; one of ten finds the right one."""
    x, y = torch.full((64, 1, 1, 1), 0.5), torch.zeros(64).long()
    source = PerExample(0, torch.arange(64))
    one = spat.attack("pgd", eps=0.05, steps=10)(Trap(), x, y, rng=source)
    ten = spat.attack("pgd", eps=0.05, steps=10, restarts=10)(Trap(), x, y, rng=source)
    broken_once = Trap()(one).argmax(1) != y
    assert 10 < int(broken_once.sum()) < 54
    assert bool((Trap()(ten).argmax(1) != y).all())


class Hesitant(nn.Module):
    """On one side of x = 0.5 a higher loss without misclassification, on the other a lower with."""

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(1)[:, 0] - 0.5
        two_rivals = torch.stack([0 * t, -18 * t - 1, -18 * t - 1], 1)
        one_rival = torch.stack([0 * t, 24 * t - 1, 0 * t - 50], 1)
        return torch.where(t[:, None] > 0, one_rival, two_rivals)


def test_restarts_prefer_a_misclassified_image_to_a_high_loss() -> None:
    x, y, model = torch.full((64, 1, 1, 1), 0.5), torch.zeros(64).long(), Hesitant()
    far = [nn.functional.cross_entropy(model(x + t), y) for t in (-0.05, 0.05)]
    assert far[0] > far[1]  # else the order would not be tested
    ten = spat.attack("pgd", eps=0.05, steps=10, restarts=10)(model, x, y, rng=0)
    assert bool((model(ten).argmax(1) != y).all())


def test_the_margin_ignores_the_label_even_when_all_others_are_negative() -> None:
    """A mask that multiplies would read the label's slot as 0 and stop the gradient."""
    z = torch.tensor([[0.5, -0.2, -0.9]], requires_grad=True)
    (g,) = torch.autograd.grad(PGD(loss="margin").named_loss(z, torch.tensor([0]), None).sum(), z)
    assert torch.equal(g, torch.tensor([[-1.0, 1.0, 0.0]]))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": -1}, "steps must be 0 or more, got -1"),
        ({"restarts": 0}, "restarts must be 1 or more, got 0"),
        ({"loss_scale": 0.0}, "loss_scale must be positive, got 0"),
        ({"step_size": -0.1}, "step_size must be 0 or more, got -0.1"),
        ({"loss": "cee"}, "unknown attack loss 'cee'. Did you mean 'ce'?"),
        ({"start": "random"}, "start must be zero, uniform or normal, got 'random'"),
        ({"norm": "l1"}, "norm must be 'linf' or 'l2', got 'l1'"),
        ({"step": 3}, "unknown setting of attack 'pgd' 'step'. Did you mean 'steps'?"),
        ({"eps": 8}, "eps of Linf must lie in [0, 1], got 8. Did you mean 8/255?"),
        ({"eps": -0.1}, "eps of Linf must lie in [0, 1], got -0.1."),
        ({"eps": float("nan")}, "eps of Linf must lie in [0, 1], got nan."),
    ],
)
def test_a_wrong_setting_gets_one_sentence(settings: dict[str, object], text: str) -> None:
    with pytest.raises(spat.UserError) as caught:
        spat.attack("pgd", **settings)
    assert text in str(caught.value)
