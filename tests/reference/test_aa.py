"""AutoAttack by its own streams against the official sequence: as strong, on any batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import spat
from spat.attacks._standard import standard_exact
from spat.rng import PerExample

EPS = 0.18  # breaks about half


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    centres = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(9))
    y = torch.randint(0, 5, (n,), generator=rng)
    return (centres[y] + 0.15 * torch.randn(n, 1, 6, 6, generator=rng)).clamp(0, 1), y


def trained() -> nn.Module:
    x, y = blobs(400, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 5))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


def test_it_is_as_strong_as_the_official_sequence() -> None:
    model, (x, y) = trained(), blobs(80, 1)
    right = model(x).argmax(1) == y
    official = standard_exact(model, x, y, eps=EPS, queries=200, batch_size=80, seed=0).robust
    x_adv = spat.attack("aa", eps=EPS, queries=200)(
        model, x, y, rng=PerExample(0, torch.arange(80))
    )
    robust = right & (model(x_adv).argmax(1) == y)
    assert 0.2 < float(official.float().mean()) < 0.8  # a budget that tells something
    assert int((robust != official).sum()) <= 1


def test_an_image_gets_the_same_alone_and_in_company() -> None:
    model, (x, y) = trained(), blobs(12, 2)
    attack, source = spat.attack("aa", eps=EPS, queries=50), PerExample(3, torch.arange(12))
    together = attack(model, x, y, rng=source)
    some = torch.tensor([7, 2, 9])
    apart = attack(model, x[some], y[some], rng=source[some])
    assert torch.allclose(together[some], apart, atol=1e-6)
