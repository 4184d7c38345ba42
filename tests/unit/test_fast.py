"""The fast copy of a model: the same logits and input gradients, whatever was rewritten."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from conftest import Convolutional, Linear
from spat import catalog
from spat.fast import Surrogate, _deep, deep_small_maps, surrogate
from spat.fast._deep import ENOUGH, deep, flat
from spat.fast._hardware import has_wide_vectors
from spat.fast._layers import FoldedConv
from spat.fast._pool import max_pool, where_positive
from spat.models import build_model


def pair(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a sum of them that weighs all differently."""
    x = x.clone().requires_grad_()
    z = model(x)
    weights = torch.linspace(-1, 1, z.numel(), dtype=z.dtype).reshape(z.shape)
    (gradient,) = torch.autograd.grad((weights * z).sum(), x)
    return z.detach(), gradient


def check(model: nn.Module, x: Tensor, tolerance: float = 1e-4) -> Surrogate:
    """For so few images, and for enough of them to lie deep."""
    fast, rest = surrogate(model.eval(), precision="float32"), x.shape[1:]
    many = torch.cat([x, torch.rand(ENOUGH, *rest, generator=torch.Generator().manual_seed(2))])
    for images in (x, many.to(x)):
        for ours, theirs in zip(pair(fast, images), pair(model, images), strict=True):
            # of all numbers together: at a kink, a rounding may decide on one of them
            assert float((ours - theirs).norm()) <= tolerance * float(theirs.norm())
    return fast


def trained(model: nn.Module) -> nn.Module:
    """With statistics and weights that are not the initial ones."""
    rng = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2, generator=rng)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5, generator=rng)  # type: ignore[union-attr]
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.1, generator=rng)
    return model


@pytest.mark.parametrize("name", ["resnet18", "preact-resnet18", "small-cnn", "lenet5", "wrn"])
def test_every_kind_of_model_has_an_equal_copy(name: str) -> None:
    settings = {"width": 0.125, **({"depth": 10, "width": 1} if name == "wrn" else {})}
    if name in ("small-cnn", "lenet5"):
        settings = {"channels": 3, "size": 32}
    assert name in catalog.names("model")
    model = trained(build_model(name, seed=0, **settings))
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    fast = check(model, x)
    assert "an evaluation copy in float32" in fast.notes[0]


class Joins(nn.Module):
    """Sums before a ReLU in every order, one whose convolution is used twice, one with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.first = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.first(x))
        x = relu(x + self.a(x))
        twice = self.b(x)
        x = relu(twice + x) + twice
        x = relu(self.c(x) + 1.0)
        return x.flatten(1)


def test_a_sum_is_fused_only_where_nobody_else_reads_it() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Joins()
    x = torch.rand(2, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    fast = check(model, x)
    if fast.net.model.a.fuses:  # type: ignore[union-attr]
        fused = {n for n, m in fast.named_modules() if isinstance(m, FoldedConv) and m.relu}
        assert fused == {"net.model.first", "net.model.a"}


ODD: list[dict[str, Any]] = [
    {"stride": 2, "padding": 1},
    {"stride": 3},
    {"stride": (2, 1), "padding": (0, 2)},
    {"dilation": 2, "padding": 1, "stride": 2},
    {"groups": 2, "stride": 2},
    {"kernel_size": (1, 5), "padding": (3, 0)},
    {"padding": "same"},
    {"padding": 1, "padding_mode": "reflect"},
]


@pytest.mark.parametrize("side", [8, 11])
@pytest.mark.parametrize("settings", ODD, ids=str)
def test_every_kind_of_convolution(settings: dict[str, Any], side: int) -> None:
    """First in its model, where one of few channels has a gradient of its own, and later."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        odd = {"kernel_size": 3, **settings}
        later = nn.Conv2d(4, 4, **odd)
        model = nn.Sequential(nn.Conv2d(2, 4, **odd), nn.ReLU(), later, nn.Flatten())
    check(model, torch.randn(3, 2, 2 * side, 2 * side, generator=torch.Generator().manual_seed(1)))


def test_one_channel_lies_channels_last() -> None:
    """Where each layout of the weights counts as every other, and the kernels take the slow one."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
    out = surrogate(model, precision="float32")(torch.rand(2, 1, 8, 8))
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_lies_deep_and_comes_back(channels: int) -> None:
    """As one image whose pixels, each with its channels, lie by row, column and image."""
    x = torch.rand(ENOUGH, channels, 5, 7, generator=torch.Generator().manual_seed(0))
    laid = deep(x)
    assert laid.shape == (1, channels, 5, 7, ENOUGH)
    assert laid.stride()[2:] == (7 * ENOUGH * channels, ENOUGH * channels, channels)
    assert torch.equal(laid[0, 0, 4, 6], x[:, 0, 4, 6])
    assert torch.equal(flat(laid), x)
    assert deep(x[1:]) is not laid
    assert deep(x[1:]).shape == x[1:].shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "sides"), [((6, 4), (2,)), ((7, 4), (2,)), ((6, 4), (3, 1, 1)), ((6, 4), (2, 1))]
)
def test_a_deep_batch_is_pooled_like_a_flat_one(
    size: tuple[int, int], sides: tuple[int, ...], dtype: torch.dtype
) -> None:
    """With ties, and a number that is none; with and without a gradient."""
    x = torch.randint(4, (ENOUGH, 3, *size), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, 1, 2] = torch.nan
    for asks in (False, True):
        pooled = flat(max_pool(deep(x).requires_grad_(asks), *sides))
        torch.testing.assert_close(pooled, max_pool2d(x, *sides), rtol=0, atol=0, equal_nan=True)


def test_gradients_pass_where_a_number_is_positive() -> None:
    of = torch.tensor([0.0, -0.0, 1e-38, -1e-38, 3.0, -3.0, torch.inf, -torch.inf])
    g = torch.arange(1.0, 9.0)
    for dtype in (torch.float32, torch.bfloat16):
        assert where_positive(g.to(dtype), of.to(dtype)).tolist() == [0, 0, 3, 0, 5, 0, 7, 0]


@pytest.mark.skipif(not has_wide_vectors(), reason="not measured to be faster")
@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet18", (3, 32, 32)), ("small-cnn", (1, 28, 28)), ("lenet5", (1, 28, 28))],
)
def test_all_convolutions_of_our_models_see_depth(name: str, shape: tuple[int, int, int]) -> None:
    fast = surrogate(build_model(name, seed=0), precision="float32")
    fast(torch.rand(ENOUGH, *shape))
    convs = [layer for layer in fast.modules() if isinstance(layer, FoldedConv)]
    assert all(lies_deep for conv in convs for _, lies_deep, _ in conv.packed)
    graph: Any = fast.net.graph
    called = [node.target for node in graph.nodes]
    assert called.count(deep) == called.count(flat) == 1


@pytest.mark.parametrize("settings", [{**odd, "kernel_size": 3} for odd in ODD], ids=str)
def test_small_maps_are_trained_deep(settings: dict[str, Any]) -> None:
    """Values and all gradients, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv = nn.Conv2d(4, 6, **{"padding": 1, **settings}).double()
        x = torch.randn(ENOUGH + 1, 4, 4, 4, dtype=torch.float64)

    def passed() -> list[Tensor]:
        given = x.clone().requires_grad_()
        out = conv(given)
        return [out, *torch.autograd.grad(out.square().sum(), (given, conv.weight, conv.bias))]

    plain = passed()
    with deep_small_maps(conv):
        laid = passed()
        assert conv(torch.zeros(1, 4, 5, 5).double()).ndim == 4
    assert "_conv_forward" not in vars(conv)
    for ours, theirs in zip(laid, plain, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not has_wide_vectors(), reason="not measured to be faster")
def test_only_small_maps_of_many_images_are_trained_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(_deep, "deep", lambda x: seen.append(x.shape) or deep(x))
    conv, halving = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1, stride=2)
    with deep_small_maps(nn.ModuleList([conv, halving])):
        conv(torch.zeros(ENOUGH, 1, 4, 4))
        halving(torch.zeros(ENOUGH, 1, 8, 8))
        conv(torch.zeros(ENOUGH, 1, 5, 5))
        conv(torch.zeros(ENOUGH - 1, 1, 4, 4))
        conv(torch.zeros(1, 4, 4))
    assert seen == [(ENOUGH, 1, 4, 4), (ENOUGH, 1, 8, 8)]


def test_a_copy_takes_over_new_weights(convolutional: Convolutional) -> None:
    fast = surrogate(convolutional, precision="float32")
    other = trained(copy.deepcopy(convolutional)).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.3)
    fast.refresh(other)
    x = torch.rand(4, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(fast(x), other(x), atol=1e-5)


def test_the_model_is_left_as_it_was(convolutional: Convolutional) -> None:
    before = {name: value.clone() for name, value in convolutional.state_dict().items()}
    modes = [module.training for module in convolutional.modules()]
    surrogate(convolutional)(torch.rand(2, 2, 8, 8))
    assert [module.training for module in convolutional.modules()] == modes
    for name, value in convolutional.state_dict().items():
        assert torch.equal(value, before[name])


def test_what_cannot_be_rewritten_is_copied_as_it_is(convolutional: Convolutional) -> None:
    convolutional.conv1.register_forward_hook(lambda module, given, out: 2 * out)
    fast = check(convolutional, torch.rand(2, 2, 8, 8))
    assert fast.notes == ("a plain copy: it has hooks.",)
    assert not fast.separable


def test_bfloat16_keeps_logits_and_gradients_in_float32(convolutional: Convolutional) -> None:
    fast, model = surrogate(convolutional, precision="bfloat16"), convolutional.eval()
    x = torch.rand(4, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    for ours, theirs in zip(pair(fast, x), pair(model, x), strict=True):
        assert ours.dtype == torch.float32
        assert 0 < float((ours - theirs).abs().max()) < 0.1 * float(theirs.abs().max())


def test_images_that_are_not_images_pass_through() -> None:
    model = Linear(torch.eye(3), torch.zeros(3))
    assert torch.equal(surrogate(model, precision="float32")(torch.ones(2, 3)), torch.ones(2, 3))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, by torch's compiler
def test_a_compiled_copy_is_the_copy(convolutional: Convolutional) -> None:
    x = torch.rand(4, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    model = trained(convolutional).eval()
    fast = surrogate(model, precision="float32", compile="inductor", example=x)
    assert fast.notes[-1] == "compiled: inductor."
    for ours, theirs in zip(pair(fast, x), pair(model, x), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    with torch.no_grad():
        model.conv1.weight.mul_(1.5)
    fast.refresh(model)
    assert torch.allclose(fast(x), model(x), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, by torch's compiler
def test_what_cannot_be_compiled_is_copied_all_the_same(
    convolutional: Convolutional, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/no/such/compiler",))
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    x = torch.rand(3, 2, 9, 9)
    fast = surrogate(convolutional, precision="float32", compile="inductor", example=x)
    assert fast.notes[0] == "an evaluation copy in float32, channels-last."
    assert fast.notes[-1].startswith("not compiled: its rewritten form fails (")
    assert torch.allclose(fast(x), convolutional.eval()(x), atol=1e-5)
