"""Adversarial weight perturbation: its slow twin, and what it leaves alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spat.catalog import build
from spat.defences._base import Progress
from spat.defences.awp import AWP
from spat.modes import Substituted
from spat.rng import generator

CLASSES, N = 5, 8


def made(name: str, **settings: Any) -> Any:
    return build("defence", name, **settings)


def images(seed: int = 0) -> tuple[Tensor, Tensor]:
    source = generator(seed, "images")
    x = torch.rand(N, 3, 2, 2, generator=source, dtype=torch.float64)
    return x, torch.randint(CLASSES, (N,), generator=source)


class Frozen(nn.Module):
    """Small network with BatchNorm, a parameter that is not used, and shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.norm = nn.BatchNorm2d(6)
        self.mix = nn.Linear(6, 6, bias=False)
        self.head = nn.Linear(6, CLASSES)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.head(self.mix(self.mix(h).relu()))


def bn_net() -> Frozen:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Frozen().double()


@pytest.mark.parametrize(
    ("base", "settings"),
    [(b, {}) for b in ("trades", "madry", "natural", "gairat", "mail-mart")]
    + [("trades", {"sp": "both"}), ("mart", {"sp": "accuracy"})],
)
def test_awp_equals_its_slow_twin(base: str, settings: dict[str, Any]) -> None:
    """A copied proxy, an SGD step up, weights moved in place, and a plain backward."""
    net, (x, y) = bn_net(), images()
    awp: AWP = made("awp", base=base, gamma=0.02, **settings)
    crafted = awp.craft(net, x, y, rng=1)
    proxy = copy.deepcopy(net)
    awp.inside.respond(proxy, x, y, crafted).loss.backward()
    moved = copy.deepcopy(net)
    with torch.no_grad():
        for p, g in zip(moved.parameters(), proxy.parameters(), strict=True):
            if p.ndim > 1 and g.grad is not None:
                step = 0.01 * g.grad
                p.add_(0.02 * p.norm() / (step.norm() + 1e-20) * step)
    expected = awp.inside.respond(moved, x, y, crafted)
    expected.loss.backward()

    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    terms = awp.respond(net, x, y, crafted)
    terms.loss.backward()
    torch.testing.assert_close(terms.loss, expected.loss, rtol=1e-10, atol=1e-12)
    for (name, p), q in zip(net.named_parameters(), moved.parameters(), strict=True):
        assert torch.equal(p, before[name])
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        theirs = torch.zeros_like(p) if q.grad is None else q.grad
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(net.norm.running_mean, moved.norm.running_mean)
    assert net.norm.num_batches_tracked == moved.norm.num_batches_tracked


def test_awp_raises_the_loss_and_moves_each_layer_by_gamma() -> None:
    net, (x, y) = bn_net(), images()
    awp: AWP = made("awp", gamma=0.01)
    crafted = awp.craft(net, x, y, rng=1)
    v = awp.perturbation(net, x, y, crafted)
    assert sorted(v) == ["conv.weight", "head.weight", "mix.weight", "unused.weight"]
    for name, change in v.items():
        share = 0.0 if name == "unused.weight" else 0.01
        length = change.norm() / net.get_parameter(name).norm()
        assert length.item() == pytest.approx(share, rel=1e-9)
    assert awp.respond(net, x, y, crafted).loss > awp.inside.respond(net, x, y, crafted).loss


def test_awp_is_its_base_in_warm_up_and_for_a_tiny_gamma() -> None:
    net, (x, y) = bn_net(), images()
    awp: AWP = made("awp", warmup=2)
    crafted = awp.craft(net, x, y, rng=1)
    plain = awp.inside.respond(net, x, y, crafted).per_example
    assert torch.equal(awp.respond(net, x, y, crafted, Progress(2, 9)).per_example, plain)
    assert not torch.equal(awp.respond(net, x, y, crafted, Progress(3, 9)).per_example, plain)
    tiny = made("awp", gamma=1e-12).respond(net, x, y, crafted).per_example
    torch.testing.assert_close(tiny, plain, rtol=1e-9, atol=1e-12)


def test_awp_speaks_for_its_base() -> None:
    spat = made("awp", base="spat-paper-wrn", sp="accuracy", weight=3.0)
    assert (spat.head, spat.passes, spat.scale, spat.head_bias) == ("cosine", "both", 9.0, False)
    assert (spat.inside.sp, spat.inside.weight) == ("accuracy", 3.0)
    assert made("awp", base="seat").ema_decay(0) == 0.1
    assert made("awp", base="mail-at", warmup=3).warmup_epochs == 76
    eps = made("awp", base="trades-official", **{"attack.eps": 0.3})
    assert eps.inner.eps == eps.inside.attack.eps == 0.3


def test_a_substituted_model_is_not_written_to() -> None:
    net, (x, _) = bn_net(), images()
    state = copy.deepcopy(net.state_dict())
    copies = {name: buffer.clone() for name, buffer in net.named_buffers()}
    weight = 2 * net.head.weight
    out = Substituted(net, {"head.weight": weight, **copies})(x)
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    out.sum().backward()
    assert net.head.weight.grad is not None
