"""What must hold of every defence and of every preset; a new file enters by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spat import catalog
from spat.defences._base import Defence, Progress, Terms
from spat.models import CosineHead
from spat.rng import generator

NAMES = [
    full for name in catalog.names("defence") for full in [name, *catalog.presets("defence", name)]
]
CLASSES, N = 4, 6
PASSES = {"clean": 1, "adversarial": 1, "both": 2}


@pytest.fixture(params=NAMES)
def defence(request: pytest.FixtureRequest) -> Defence:
    """The defence with at most three inner steps, so that it costs little."""
    built: Defence = catalog.build("defence", str(request.param))
    return replace(built, attack=replace(built.attack, steps=min(built.attack.steps, 3)))


def small_net(defence: Defence, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Convolution, BatchNorm, and the head the defence asks for; a frozen BatchNorm among them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = CosineHead if defence.head == "cosine" else nn.Linear
        net = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            head(8, CLASSES),
        )
    net[4].eval()
    return net.to(dtype)


def batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.rand(N, 2, 6, 6, generator=generator(1), dtype=torch.float64)
    return x.to(dtype), torch.randint(CLASSES, (N,), generator=generator(2))


def logits(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Random logits within [-1, 1] (cosines, that is, where a defence wants them), and context."""
    source = generator(3)
    clean, adv = (2 * torch.rand(N, CLASSES, generator=source, dtype=torch.float64) - 1,) * 2
    adv = (adv + 0.3 * torch.randn(adv.shape, generator=source, dtype=torch.float64)).clamp(-1, 1)
    y = torch.randint(CLASSES, (N,), generator=source)
    context = {"kappa": torch.randint(3, (N,), generator=source), "progress": Progress(1000, 1000)}
    return clean.to(dtype), adv.to(dtype), y, context


def gradients(terms: Terms, *leaves: Tensor) -> list[Tensor | None]:
    return list(torch.autograd.grad(terms.loss, leaves, allow_unused=True))


def test_terms_are_finite_and_differentiable(defence: Defence) -> None:
    clean, adv, y, context = logits()
    clean.requires_grad_(), adv.requires_grad_()
    terms = defence.terms(clean, adv, y, **context)
    given = gradients(terms, clean, adv)
    used = [g for g in given if g is not None]
    assert torch.isfinite(terms.per_example).all()
    assert all(torch.isfinite(g).all() and g.abs().max() > 0 for g in used)
    assert len(used) == PASSES[defence.passes]


def test_terms_average_to_the_loss_and_are_one_an_example(defence: Defence) -> None:
    clean, adv, y, context = logits()
    terms = defence.terms(clean, adv, y, **context)
    assert terms.per_example.shape == (N,)
    assert torch.equal(terms.loss, terms.per_example.mean())
    assert terms.named
    assert all(part.shape == (N,) for part in terms.named.values())
    assert all(part.is_floating_point() for part in terms.named.values())
    assert all(torch.isfinite(part).all() for part in terms.named.values())


def test_permuting_the_batch_permutes_the_terms(defence: Defence) -> None:
    clean, adv, y, context = logits()
    order = torch.randperm(N, generator=generator(4))
    moved = {**context, "kappa": context["kappa"][order]}
    terms = defence.terms(clean, adv, y, **context).per_example
    again = defence.terms(clean[order], adv[order], y[order], **moved).per_example
    torch.testing.assert_close(again, terms[order], rtol=1e-12, atol=1e-14)


def test_float32_agrees_with_float64(defence: Defence) -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        clean, adv, y, context = logits(dtype)
        clean.requires_grad_(), adv.requires_grad_()
        terms = defence.terms(clean, adv, y, **context)
        assert terms.per_example.dtype == dtype
        used = [g for g in gradients(terms, clean, adv) if g is not None]
        results.append([terms.per_example, *used])
    for low, high in zip(*results, strict=True):
        torch.testing.assert_close(low.double(), high, rtol=1e-4, atol=1e-6)


def test_settings_of_the_weights_carry_no_gradient(defence: Defence) -> None:
    clean, adv, y, context = logits()
    terms = defence.terms(clean, adv.requires_grad_(), y, **context)
    if "weight" in terms.named:
        assert not terms["weight"].requires_grad


def test_adversarial_images_stay_in_reach(defence: Defence) -> None:
    net, (x, y) = small_net(defence), batch()
    x_adv = defence.craft(net, x, y, rng=5).x_adv
    if defence.passes == "clean":
        assert x_adv is None
        return
    assert x_adv is not None
    assert not x_adv.requires_grad
    assert x_adv.shape == x.shape
    assert 0 <= x_adv.min() <= x_adv.max() <= 1
    assert (x_adv - x).abs().max() <= float(defence.inner.eps) + 1e-6
    moves_at_once = defence.replays == 1  # free's perturbation is zero before the first update
    assert bool((x_adv - x).abs().max() > 0) == moves_at_once


def test_crafting_is_a_function_of_its_source(defence: Defence) -> None:
    net, (x, y) = small_net(defence), batch()
    if defence.passes == "clean":
        return
    before = torch.get_rng_state()
    first, again, other = (defence.craft(net, x, y, rng=seed).x_adv for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (defence.inner.start == "zero")


def test_the_model_comes_back_unchanged(defence: Defence) -> None:
    """Every module's mode, every parameter and gradient, every hook; buffers but BatchNorm's."""
    net, (x, y) = small_net(defence), batch()
    modes = [part.training for part in net.modules()]
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    objects = {name: id(p) for name, p in net.named_parameters()}
    frozen = net[4].running_mean.clone()
    defence.objective(net, x, y, rng=5)
    assert [part.training for part in net.modules()] == modes
    assert {name: id(p) for name, p in net.named_parameters()} == objects
    for name, p in net.named_parameters():
        assert p.grad is None
        assert torch.equal(p, weights[name])
    assert torch.equal(net[4].running_mean, frozen)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())


def test_the_model_comes_back_unchanged_after_an_error(defence: Defence) -> None:
    net, (x, y) = small_net(defence), batch()
    handle = net[2].register_forward_hook(_fail_in_training)
    net[4].train()
    modes = [part.training for part in net.modules()]
    with pytest.raises(RuntimeError, match="broken"):
        defence.objective(net, x, y, rng=5)
    handle.remove()
    assert [part.training for part in net.modules()] == modes
    assert not any(part._forward_hooks for part in net.modules())


def _fail_in_training(part: nn.Module, *_: Any) -> None:
    if part.training:
        raise RuntimeError("broken")


def test_batchnorm_is_updated_once_a_training_pass(defence: Defence) -> None:
    net, (x, y) = small_net(defence), batch()
    defence.objective(net, x, y, rng=5)
    assert net[1].num_batches_tracked.item() == PASSES[defence.passes]
    crafted = defence.craft(net, x, y, rng=5)
    assert net[1].num_batches_tracked.item() == PASSES[defence.passes]
    defence.respond(net, x, y, crafted)
    assert net[1].num_batches_tracked.item() == 2 * PASSES[defence.passes]


def test_the_objective_trains_every_parameter(defence: Defence) -> None:
    net, (x, y) = small_net(defence), batch()
    defence.objective(net, x, y, rng=5).loss.backward()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_bfloat16_autocast_trains_without_nan(defence: Defence, factor: float) -> None:
    """Also where the logits are large; the loss itself is computed in float32."""
    net, (x, y) = small_net(defence), batch()
    with torch.no_grad():
        net[7].weight.mul_(factor)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = defence.objective(net, x, y, rng=5)
    assert terms.per_example.dtype == torch.float32
    terms.loss.backward()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name


class Coarse(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.bfloat16()


def test_no_loss_is_computed_in_low_precision(defence: Defence) -> None:
    net, (x, y) = nn.Sequential(small_net(defence), Coarse()), batch()
    terms = defence.objective(net, x, y, rng=5)
    assert terms.per_example.dtype == torch.float32


def test_a_step_against_the_gradient_lowers_the_loss(defence: Defence) -> None:
    net, (x, y) = small_net(defence, torch.float64), batch(torch.float64)
    net.eval()
    crafted = defence.craft(net, x, y, rng=5)
    before = defence.respond(net, x, y, crafted).loss
    before.backward()
    with torch.no_grad():
        for p in net.parameters():
            p.sub_(1e-4 * p.grad)
    assert defence.respond(net, x, y, crafted).loss < before


def test_warm_ups_switch_at_the_stated_epoch(defence: Defence) -> None:
    """Constant before it, constant after it, and different across it."""
    net, (x, y) = small_net(defence, torch.float64), batch(torch.float64)
    net.eval()
    crafted, last = defence.craft(net, x, y, rng=5), defence.warmup_epochs

    def loss(epoch: int) -> float:
        return defence.respond(net, x, y, crafted, Progress(epoch, 200)).loss.item()

    after = defence.respond(net, x, y, crafted).loss.item()
    assert loss(last + 1) == loss(200) == after
    if last > 0:
        assert loss(1) == loss(last)
        assert loss(last) != after


def test_a_faster_copy_is_attacked_in_place_of_the_model(defence: Defence) -> None:
    net, other, (x, y) = small_net(defence), small_net(defence), batch()
    calls: list[bool] = []
    net[0].register_forward_hook(lambda part, *_: calls.append(net.training))
    defence.objective(net, x, y, rng=5, surrogate=other.eval())
    assert all(calls)


def test_settings_are_frozen_documented_and_rebuild_the_defence(
    request: pytest.FixtureRequest, defence: Defence
) -> None:
    name = request.node.callspec.params["defence"]
    held = catalog.settings("defence", name)
    assert all(setting.help for setting in held), [s.name for s in held if not s.help]
    whole = {s.name: s.default for s in held}
    assert catalog.build("defence", name, **whole) == catalog.build("defence", name)
    assert catalog.find("defence", name).summary.endswith(".")
    with pytest.raises(AttributeError):
        defence.attack = None  # type: ignore[misc, assignment]
