"""Models of other people's making: the copy is right, or it falls back and says why."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from test_fast import pair
from torch import Tensor, nn

import spat
from spat.fast import surrogate

Head = Callable[["Odd", Tensor], Tensor]


class Odd(nn.Module):
    """A convolution, and whatever `head` makes of its [n, 4, 6, 6] features."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.LayerNorm(36)
        self.attention = nn.MultiheadAttention(36, 2, batch_first=True)
        self.across = nn.MultiheadAttention(36, 2)
        self.bare = nn.BatchNorm2d(4, track_running_stats=False)
        self.linear = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self, torch.relu(self.conv(x)))


def flat(m: Odd, h: Tensor) -> Tensor:
    return m.linear(h.flatten(1))  # type: ignore[no-any-return]


def tokens(m: Odd, h: Tensor) -> Tensor:
    q = m.norm(h.flatten(2))
    return flat(m, h.flatten(2) + m.attention(q, q, q, need_weights=False)[0])


def across(m: Odd, h: Tensor) -> Tensor:
    q = h.flatten(2)
    return flat(m, 20 * m.across(q, q, q, need_weights=False)[0])


APART: dict[str, Head] = {
    "flatten": flat,
    "view": lambda m, h: m.linear(h.view(h.size(0), -1)),
    "view by shape": lambda m, h: m.linear(h.view(h.shape[0], 4 * 36)),
    "view by minus one": lambda m, h: m.linear(h.view(-1, 4 * 36)),
    "attention": tokens,
    "mean": lambda m, h: h.mean((2, 3))[:, :3],
    "cat": lambda m, h: torch.cat([h.amax((2, 3)), h.mean((-2, -1))], 1),
}
MIXED: dict[str, Head] = {
    "attention across": across,
    "batch statistics": lambda m, h: flat(m, m.bare(h)),
    "mean of the batch": lambda m, h: flat(m, h - h.mean(0, keepdim=True)),
    "mean of all": lambda m, h: flat(m, h - h.mean()),
    "one of the batch": lambda m, h: flat(m, h - h[0]),
    "softmax over the batch": lambda m, h: flat(m, h.softmax(0)),
    "a product of images": lambda m, h: h.flatten(1) @ h.flatten(1).t() @ flat(m, h),
    "turned round": lambda m, h: flat(m, h.flip(0)),
}
UNTRACED: dict[str, Head] = {
    "values": lambda m, h: flat(m, h) if h.mean() > 0.1 else -flat(m, h),
    "batch size": lambda m, h: flat(m, h) if len(h) > 2 else -flat(m, h),
}


def odd(head: Head) -> Odd:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Odd(head).eval()


def images(n: int = 5) -> Tensor:
    return torch.rand(n, 2, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", [*APART, *MIXED, *UNTRACED])
def test_the_copy_is_right(name: str, n: int) -> None:
    model, x = odd({**APART, **MIXED, **UNTRACED}[name]), images(n)
    for checked in (None, x):
        fast = surrogate(model, precision="float32", example=checked)
        for ours, theirs in zip(pair(fast, x), pair(model, x), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5 * float(1 + theirs.abs().max()))


@pytest.mark.parametrize("name", [*APART, *MIXED, *UNTRACED])
def test_a_batch_is_split_only_where_images_keep_apart(name: str) -> None:
    model = odd({**APART, **MIXED, **UNTRACED}[name])
    assert surrogate(model, precision="float32").separable == (name in APART)
    if name in MIXED:
        assert not torch.allclose(model(images())[2:], model(images()[2:]), atol=1e-4)


@pytest.mark.parametrize("name", UNTRACED)
def test_why_a_model_is_copied_as_it_is(name: str) -> None:
    (note,) = surrogate(odd(UNTRACED[name]), precision="float32").notes
    assert note.startswith("a plain copy: its forward cannot be traced: ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*APART, *MIXED, *UNTRACED])
def test_a_training_step_is_the_exact_one(name: str, dtype: torch.dtype) -> None:
    """Its loss, in the precision that the model has; images that are one batch stay one."""
    model = odd({**APART, **MIXED, **UNTRACED}[name]).to(dtype)
    x, y = images(64).to(dtype), torch.arange(64) % 3
    settings = {"defence": spat.defence("madry", **{"attack.steps": 1}), "lr": 0.01}
    losses = []
    for mode in ({"exact": True}, {"precision": "float32"}):
        step = spat.step(copy.deepcopy(model), **settings, **mode)  # type: ignore[arg-type]
        losses.append([step(x, y), step(x[:1], y[:1])])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_frozen_batchnorm_stays_frozen() -> None:
    """It learns nothing from the batch, and the copy that is attacked has its statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(3))
        model(images())
    frozen = model[1].eval()
    before = {name: value.clone() for name, value in frozen.state_dict().items()}
    step = spat.step(model, "madry", weight_decay=0.0)
    step(images(), torch.arange(5) % 3)
    assert not frozen.training
    assert model[0].training
    assert torch.equal(frozen.running_mean, before["running_mean"])
    assert torch.equal(frozen.running_var, before["running_var"])
