"""C&W in the ball: the margin of each example, climbed also beyond the boundary."""

from __future__ import annotations

import pytest
import torch

import spat
from conftest import Linear
from spat.attacks.pgd import PGD
from spat.threat import Norm

EPS = 0.1


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_is_pgd_on_the_margin_with_all_its_settings(norm: Norm) -> None:
    given = {"eps": 0.2, "norm": norm, "steps": 7, "step_size": 0.01, "restarts": 3}
    assert spat.attack("cw", **given) == PGD(loss="margin", **given)


def model() -> Linear:
    """Three classes whose rival differs from image to image, far from each other."""
    weight = torch.tensor([[1.0, 1, 0, 0], [-1, 0, 1, 2], [0, -2, -1, 1]])
    return Linear(weight, torch.tensor([0.0, 0.1, -0.1]))


def test_it_climbs_towards_the_best_other_class_of_each_example() -> None:
    x = torch.tensor([[0.9, 0.9, 0.6, 0.2], [0.9, 0.2, 0.4, 0.4], [0.9, 0.0, 0.0, 0.3]])
    x, y, linear = x.reshape(3, 1, 2, 2), torch.tensor([0, 0, 0]), model()
    rival = spat.losses.runner_up(linear(x), y)
    push = (linear.weight[rival] - linear.weight[y]).sign().reshape(x.shape)
    x_adv = spat.attack("cw", eps=0.05, steps=1, step_size=0.2)(linear, x, y, rng=0)
    assert torch.allclose(x_adv, (x + 0.05 * push).clamp(0, 1), atol=1e-6)
    assert len(rival.unique()) == 2  # else the batch would say little


def test_it_goes_on_beyond_the_boundary() -> None:
    """The distance of the original stops at a margin of zero; a ball has room left."""
    linear = Linear(torch.tensor([[1.0, 1, 1, 1], [-1.0, -1, -1, -1]]), torch.zeros(2))
    x, y = torch.full((1, 1, 2, 2), 0.5), torch.tensor([1])  # misclassified from the start
    x_adv = spat.attack("cw", eps=EPS)(linear, x, y, rng=0)
    assert torch.allclose(x_adv, x + EPS, atol=1e-6)
