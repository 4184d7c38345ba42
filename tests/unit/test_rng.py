"""Named randomness: pure functions of names, and streams that no neighbour can change."""

from __future__ import annotations

import pytest
import torch

from spat import rng
from spat.rng import PerExample


def test_derive_is_a_function_of_every_name() -> None:
    assert rng.derive(0, "a", 1) == rng.derive(0, "a", 1)
    assert (
        len({rng.derive(0, "a"), rng.derive(0, "b"), rng.derive(1, "a"), rng.derive("0", "a")}) == 4
    )


def test_streams_do_not_depend_on_the_batch() -> None:
    whole = PerExample(7, torch.arange(10))
    like = torch.empty(10, 3, 2, 2)
    for draw in (rng.uniform, rng.normal):
        together = draw(whole, like)
        index = torch.tensor([8, 2, 5])
        assert torch.equal(draw(whole[index], like[index]), together[index])


def test_uniform_numbers_are_uniform() -> None:
    u = rng.uniform(PerExample(1, torch.arange(100)), torch.empty(100, 2000)).double()
    assert 0 <= float(u.min()) < 1e-4
    assert 1 - 1e-4 < float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=2e-3)
    assert float(u.var()) == pytest.approx(1 / 12, abs=1e-3)
    counts = torch.histc(u, bins=50, min=0, max=1)
    chi2 = float(((counts - 4000) ** 2 / 4000).sum())
    assert chi2 < 86  # the 99.9% point for 49 degrees of freedom
    corr = torch.corrcoef(u[:50])  # between examples with neighbouring ids
    assert float((corr - torch.eye(50, dtype=corr.dtype)).abs().max()) < 0.1


def test_normal_numbers_are_normal() -> None:
    n = rng.normal(PerExample(1, torch.arange(50)), torch.empty(50, 2000)).double()
    assert float(n.mean()) == pytest.approx(0, abs=0.02)
    assert float(n.std()) == pytest.approx(1, abs=0.01)
    assert float((n.abs() < 1.96).double().mean()) == pytest.approx(0.95, abs=3e-3)


def test_forks_differ() -> None:
    source, like = PerExample(1, torch.arange(4)), torch.empty(4, 9)
    a, b = (rng.uniform(rng.fork(source, "restart", i), like) for i in (0, 1))
    assert not torch.equal(a, b)
    assert not torch.equal(a, rng.uniform(source, like))


@pytest.mark.parametrize("manager", ["preserved", "global_seed"])
def test_the_global_generator_comes_back_also_after_an_exception(manager: str) -> None:
    before = torch.get_rng_state()

    def disturb_and_fail() -> None:
        with getattr(rng, manager)(torch.device("cpu")):
            torch.rand(3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        disturb_and_fail()
    assert torch.equal(before, torch.get_rng_state())


def test_global_seed_makes_dropout_a_function_of_its_names() -> None:
    def draw(step: int) -> torch.Tensor:
        with rng.global_seed(torch.device("cpu"), 0, "forward", step):
            return torch.nn.functional.dropout(torch.ones(100))

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
