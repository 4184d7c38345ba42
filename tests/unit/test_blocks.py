"""Blocks of a batch: the same rows in the same order, whichever block is done first."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import Tensor

import spat
from conftest import Convolutional
from spat.attacks.pgd import PGD
from spat.defences._base import Defence
from spat.fast import Split, run_blocks, split, surrogate
from spat.threat import Linf

CPU = torch.device("cpu")


def test_rows_come_back_in_order_whichever_block_is_done_first() -> None:
    def slow_start(rows: slice) -> Tensor:
        time.sleep(0.05 if rows.start == 0 else 0.0)
        return torch.arange(10)[rows]

    assert run_blocks(slow_start, 10, Split(4, workers=3)).tolist() == list(range(10))


def test_blocks_run_side_by_side_and_each_on_its_share_of_the_threads(two_threads: None) -> None:
    meet, seen = threading.Barrier(2, timeout=10), []  # passed only by two at once

    def work(rows: slice) -> Tensor:
        meet.wait()
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        return torch.zeros(2)

    with torch.no_grad():
        run_blocks(work, 4, Split(2, workers=2, threads=1))
    assert seen == [(1, False), (1, False)]
    assert torch.get_num_threads() == 2


def test_an_error_in_a_block_is_raised_and_the_threads_are_as_before(two_threads: None) -> None:
    def broken(rows: slice) -> Tensor:
        if rows.start == 2:
            raise ValueError("row 2")
        return torch.zeros(2)

    with pytest.raises(ValueError, match="row 2"):
        run_blocks(broken, 4, Split(2, workers=2, threads=1))
    assert torch.get_num_threads() == 2


def test_only_a_separable_copy_is_split(two_threads: None, convolutional: Convolutional) -> None:
    assert split(convolutional, 64, CPU) == Split(64)
    assert split(surrogate(convolutional), 64, CPU) == Split(32, workers=2, threads=1)
    assert split(surrogate(convolutional), 63, CPU).workers == 1  # too few for two workers


@pytest.mark.parametrize("name", ["madry", "trades", "gairat", "free", "n-fgsm"])
def test_an_attack_in_blocks_is_the_attack(
    two_threads: None, convolutional: Convolutional, name: str
) -> None:
    """In float64, where rounding decides no sign; kappa of GAIRAT is counted row by row."""
    settings = {} if name in ("free", "n-fgsm") else {"attack.steps": 4}
    defence: Defence = spat.defence(name, **settings)
    model = convolutional.double().eval()
    rng = torch.Generator().manual_seed(2)
    x = torch.rand(70, 2, 8, 8, generator=rng).double()
    y = torch.randint(0, 4, (70,), generator=rng)
    fast = surrogate(model)
    assert split(fast, 70, CPU).workers == 2
    whole, parts = defence.craft(model, x, y, rng=3), defence.craft(fast, x, y, rng=3)
    assert whole.x_adv is not None
    assert parts.x_adv is not None
    torch.testing.assert_close(parts.x_adv, whole.x_adv, rtol=0, atol=1e-12)
    for key, value in whole.seen.items():
        assert torch.equal(parts.seen[key], value)


def test_a_budget_for_each_example_keeps_to_its_example(
    two_threads: None, convolutional: Convolutional
) -> None:
    x, y = torch.full((64, 2, 8, 8), 0.5), torch.zeros(64, dtype=torch.int64)
    eps = torch.linspace(0.01, 0.2, 64)
    x_adv = PGD(eps=eps, steps=3)(surrogate(convolutional, precision="float32"), x, y, rng=0)
    assert torch.allclose(Linf(eps).distance(x_adv, x), eps, atol=1e-6)
