"""Means over areas against a loop over finer pixels, and what no mean may change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spat.datasets import shrunk


def shrunk_slowly(x: Tensor, height: int, width: int) -> Tensor:
    """Each pixel repeated until both grids fit into it, then plain means of whole blocks."""
    h, w = x.shape[2:]
    fine = x.repeat_interleave(height, 2).repeat_interleave(width, 3)
    return fine.unflatten(2, (height, h)).unflatten(4, (width, w)).mean((3, 5))


@pytest.mark.parametrize(
    ("sides", "scale", "expected"),
    [
        ((28, 28), 0.5, (14, 14)),
        ((28, 28), 0.75, (21, 21)),
        ((32, 20), 0.3, (10, 6)),
        ((7, 5), 0.9, (6, 4)),
        ((3, 4), 0.1, (1, 1)),
        ((6, 6), 1.0, (6, 6)),
    ],
)
def test_equals_the_slow_twin(
    sides: tuple[int, int], scale: float, expected: tuple[int, int]
) -> None:
    x = torch.rand(3, 2, *sides, generator=torch.Generator().manual_seed(0))
    small = shrunk(x, scale)
    assert small.shape == (3, 2, *expected)
    assert torch.allclose(small, shrunk_slowly(x, *expected), atol=1e-6)


def test_nothing_fine_is_left_to_alias() -> None:
    """A chequerboard of pixels becomes even grey; picking pixels would leave it black or white."""
    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2
    assert torch.allclose(shrunk(board[None, None].float(), 0.5), torch.full((1, 1, 8, 8), 0.5))


def test_the_range_and_the_mean_stay() -> None:
    white = torch.ones(1, 1, 28, 28)
    for scale in (0.25, 0.3, 0.7, 0.99):
        assert shrunk(white, scale).max() <= 1
        assert torch.allclose(shrunk(white, scale), torch.ones(()), atol=1e-6)
    x = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(shrunk(x, 0.75).mean((2, 3)), x.mean((2, 3)), atol=1e-6)
