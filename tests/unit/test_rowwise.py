"""The graph of a model gives its numbers to the last bit, also in parts of a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from spat.attacks.pgd import PGD
from spat.fast import Exact, rowwise, split
from spat.fast.rowwise import FrozenNorm, Rowwise
from spat.models import build_model


class Odd(nn.Module):
    """BatchNorms without weights, without a convolution before, and right before an average."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 5, 3, stride=2)
        self.plain = nn.BatchNorm2d(5, affine=False, eps=1e-3)
        self.last = nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.plain(self.conv(self.first(x))))
        return self.last(x + 1.0).mean((2, 3))


def resnet() -> nn.Module:
    return build_model("resnet18", seed=0, width=0.25)


def trained(model: nn.Module) -> nn.Module:
    rng = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for buffer, low, high in ((module.running_mean, -1, 1), (module.running_var, 0.1, 2)):
                assert buffer is not None
                buffer.uniform_(low, high, generator=rng)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5, generator=rng)
    return model.eval()


def images(n: int) -> Tensor:
    return torch.rand(n, 3, 15, 15, generator=torch.Generator().manual_seed(n))


def gradient(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    z = model(x)
    weights = torch.linspace(-1, 1, z.numel(), dtype=z.dtype).reshape(z.shape)
    return torch.autograd.grad((weights * z.square()).sum(), x)[0]


@pytest.mark.parametrize("last", [False, True], ids=["as it lies", "channels-last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", [resnet, Odd])
def test_logits_and_gradients_are_the_models_own(
    make: type[nn.Module], dtype: torch.dtype, last: bool
) -> None:
    """A BatchNorm's gradient rounds where torch's rounds."""
    model, x = trained(make()).to(dtype), images(5).to(dtype)
    if last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    own = rowwise(model)
    assert isinstance(own, Rowwise)
    assert any(isinstance(module, FrozenNorm) for module in own.modules())
    assert torch.equal(own(x), model(x))
    assert torch.equal(gradient(own, x), gradient(model, x))


def test_new_weights_and_statistics_are_seen() -> None:
    model = trained(resnet())
    own, x = rowwise(model), images(2)
    before = own(x)
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            tensor.mul_(1.1)
    assert not torch.equal(own(x), before)
    assert torch.equal(own(x), model(x))
    assert torch.equal(gradient(own, x), gradient(model, x))


def test_an_attack_in_parts_is_the_attack_of_the_whole_batch(two_threads: None) -> None:
    """Two parts have a start each: they would else count each other's steps as their own."""
    model, x = trained(resnet()), images(70)
    own, y = Exact(model).on(x), torch.arange(70) % 10
    if own is not model:
        assert split(own, len(x), x.device).workers == 2
    attack = PGD(eps=0.1, steps=4, start="uniform")
    assert torch.equal(attack(own, x, y, rng=0), attack(model, x, y, rng=0))


class Short(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Linear(12, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x.flatten(1))


def test_parts_of_a_batch_are_attacked_only_where_the_bits_are_the_same(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Short().eval(), torch.rand(64, 3, 2, 2)
    same, other = Exact(model), Exact(model)
    assert same.on(x) is same.graph
    assert same.graph is not model

    def rounded(*given: Tensor) -> Tensor:
        return linear(*given) * (1 + 1e-7 * (len(given[0]) < 64))

    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", rounded)
    assert other.on(x) is model
    assert other.on(x[:40]) is other.graph  # too few for two parts


def test_a_gradient_of_zero_shows_nothing() -> None:
    model, x = Short().eval(), torch.rand(4, 3, 2, 2)
    weight = model.whole.weight.detach().clone()
    nn.init.zeros_(model.whole.weight)
    exact = Exact(model)
    assert exact.on(x) is model
    assert not exact.same
    model.whole.weight.data.copy_(weight)
    assert exact.on(x) is exact.graph
