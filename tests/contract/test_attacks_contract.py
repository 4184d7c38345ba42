"""One battery for all attacks: a new file in `attacks/` is tested here with no other edit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional, Linear
from spat import catalog
from spat.attacks._base import Attack
from spat.rng import PerExample
from spat.threat import Norm, threat

ATTACKS = catalog.names("attack")
NORMS: list[Norm] = ["linf", "l2"]
QUICK = {"steps": 3, "queries": 20, "restarts": 2}


def build(name: str, quick: dict[str, int] = QUICK, **settings: object) -> Attack:
    """The attack with few steps: the battery tests conduct, not strength."""
    known = {setting.name for setting in catalog.settings("attack", name)}
    fewer = {key: value for key, value in quick.items() if key in known}
    return spat.attack(name, **{**fewer, **settings})


def snapshot(model: nn.Module) -> tuple[object, ...]:
    return (
        copy.deepcopy(model.state_dict()),
        [module.training for module in model.modules()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [p.requires_grad for p in model.parameters()],
        [len(module._forward_hooks) for module in model.modules()],
        torch.get_rng_state(),
    )


def same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_stays_in_the_threat_set(
    name: str, norm: Norm, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    eps = 0.1 if norm == "linf" else 0.5
    x_adv = build(name, eps=eps, norm=norm)(convolutional, x, y, rng=torch.Generator())
    assert x_adv.shape == x.shape
    assert x_adv.dtype == x.dtype
    assert x_adv.device == x.device
    assert not x_adv.requires_grad
    assert float(x_adv.min()) >= 0.0
    assert float(x_adv.max()) <= 1.0
    assert float(threat(norm, eps).distance(x_adv, x).max()) <= eps + 1e-6


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_leaves_everything_as_it_was(
    name: str, norm: Norm, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    convolutional(x).sum().backward()  # so that there are gradients to disturb
    before, x_before = snapshot(convolutional), x.clone()
    build(name, eps=0.1, norm=norm)(convolutional, x, y)
    assert same(before, snapshot(convolutional))
    assert torch.equal(x, x_before)
    assert x.requires_grad is False


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_leaves_everything_as_it_was_after_an_exception(
    name: str, norm: Norm, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    calls = 0

    def fail_later(module: nn.Module, given: object, result: object) -> None:
        nonlocal calls
        torch.rand(1)  # disturbs the global generator on the way
        calls += 1
        if calls > (name != "fgsm"):  # which asks the model once
            raise RuntimeError("the model broke")

    convolutional.out.register_forward_hook(fail_later)
    before = snapshot(convolutional)
    with pytest.raises(RuntimeError, match="the model broke"):
        # A wide ball, so that no attack is done before the model breaks.
        build(name, eps=0.5, norm=norm)(convolutional, *images)
    assert same(before, snapshot(convolutional))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_zero_budget_is_the_identity(
    name: str, norm: Norm, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    assert torch.equal(build(name, eps=0.0, norm=norm)(convolutional, x, y), x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_one_by_one_equals_batch(
    name: str, norm: Norm, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, y = (part.double() if part.is_floating_point() else part for part in images)
    attack, source = build(name, eps=0.1, norm=norm), PerExample(1, torch.arange(len(x)))
    model = convolutional.double()
    together = attack(model, x, y, rng=source)
    alone = [
        attack(model, x[i : i + 1], y[i : i + 1], rng=source[torch.tensor([i])])
        for i in range(len(x))
    ]
    assert torch.allclose(together, torch.cat(alone), atol=1e-9)


@pytest.mark.parametrize("name", ATTACKS)
def test_same_seed_same_result(
    name: str, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    attack = build(name, eps=0.1)
    first = attack(convolutional, *images, rng=torch.Generator().manual_seed(1))
    assert torch.equal(first, attack(convolutional, *images, rng=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("name", ATTACKS)
def test_works_inside_no_grad(
    name: str, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    attack = build(name, eps=0.1)
    with torch.no_grad():
        inside = attack(convolutional, *images, rng=3)
    assert torch.equal(inside, attack(convolutional, *images, rng=3))


def least_eps(model: Linear, x: Tensor, y: Tensor, norm: Norm) -> Tensor:
    """[n] the exact distance to another class, away from the pixel box: a gap by its dual norm."""
    z, w = model(x).detach(), model.weight.detach()
    slope = w[y][:, None] - w[None]
    dual = slope.abs().sum(2) if norm == "linf" else slope.square().sum(2).sqrt()
    gaps = (z.gather(1, y[:, None]) - z) / dual
    return gaps.scatter(1, y[:, None], torch.inf).amin(1)


def linear_task() -> tuple[Linear, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    model = Linear(torch.randn(4, 16, generator=rng), torch.zeros(4))
    x = 0.45 + 0.1 * torch.rand(5, 1, 4, 4, generator=rng)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_breaks_a_linear_model_at_twice_the_least_budget(name: str, norm: Norm) -> None:
    model, x, y = linear_task()
    x_adv = spat.attack(name, eps=2 * least_eps(model, x, y, norm), norm=norm)(model, x, y, rng=0)
    assert bool((model(x_adv).argmax(1) != y).all())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_breaks_nothing_below_the_least_budget(name: str, norm: Norm) -> None:
    model, x, y = linear_task()
    eps = 0.99 * least_eps(model, x, y, norm)
    x_adv = build(name, {"queries": 300}, eps=eps, norm=norm)(model, x, y, rng=0)
    assert bool((model(x_adv).argmax(1) == y).all())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_each_example_keeps_to_its_own_budget(
    name: str, norm: Norm, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, y, model = images[0].double(), images[1], convolutional.double()
    budgets, source = [0.0, 0.05, 0.1, 0.0, 0.2, 0.3], PerExample(1, torch.arange(len(x)))
    eps = torch.tensor(budgets, dtype=x.dtype)
    x_adv = build(name, eps=eps, norm=norm)(model, x, y, rng=source)
    assert bool((threat(norm, eps).distance(x_adv, x) <= eps + 1e-9).all())
    for i, budget in enumerate(budgets):
        at = torch.tensor([i])
        alone = build(name, eps=budget, norm=norm)(model, x[at], y[at], rng=source[at])
        assert torch.allclose(x_adv[at], alone, atol=1e-9)


BAD_INPUT = [
    (
        torch.rand(2, 2, 8, 8) * 255,
        torch.tensor([0, 1]),
        r"images must lie in \[0, 1\], got values",
    ),
    (torch.full((2, 2, 8, 8), torch.nan), torch.tensor([0, 1]), r"images must lie in \[0, 1\]"),
    (torch.zeros(2, 2, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), "got torch.uint8"),
    (torch.rand(0, 2, 8, 8), torch.tensor([]).long(), "a batch of at least one"),
    (torch.rand(2, 2, 8, 8), torch.tensor([0, 4]), r"classes of the model \(0 to 3\), got 4"),
    (torch.rand(2, 2, 8, 8), torch.tensor([0, -1]), r"labels must be classes .* got -1"),
    (torch.rand(2, 2, 8, 8), torch.tensor([0.0, 1.0]), "labels must be an integer tensor"),
    (torch.rand(2, 2, 8, 8), torch.tensor([0]), r"labels must have shape \(2,\)"),
]


@pytest.mark.parametrize(("x", "y", "text"), BAD_INPUT)
@pytest.mark.parametrize("name", ATTACKS)
def test_bad_input_gets_one_sentence(
    name: str, x: Tensor, y: Tensor, text: str, convolutional: Convolutional
) -> None:
    with pytest.raises(spat.UserError, match=text) as caught:
        build(name)(convolutional, x, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_labels_of_any_integer_kind(
    name: str, kind: torch.dtype, convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    attack, (x, y) = build(name, eps=0.1), images
    x_adv = attack(convolutional, x, y.to(kind), rng=1)
    assert torch.equal(x_adv, attack(convolutional, x, y, rng=1))


@pytest.mark.parametrize("name", ATTACKS)
def test_eps_of_8_asks_for_8_255(name: str) -> None:
    with pytest.raises(spat.UserError, match=r"got 8\. Did you mean 8/255\?"):
        spat.attack(name, eps=8)
