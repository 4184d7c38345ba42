"""The passes that an attack costs are counted, and counting changes nothing."""

from __future__ import annotations

import torch
from torch import Tensor

import spat
from conftest import Convolutional, Linear
from spat.evaluation.counted import Counted
from spat.records import Event


def test_passes_are_counted_in_examples() -> None:
    counted = Counted(Linear(torch.eye(3), torch.zeros(3)))
    x = torch.rand(5, 3, requires_grad=True)
    with torch.no_grad():
        counted(x[:2])
    assert (counted.forwards, counted.backwards) == (2, 0)
    value = counted(x).sum()
    assert (counted.forwards, counted.backwards) == (7, 0)
    torch.autograd.grad(value, x)
    assert (counted.forwards, counted.backwards) == (7, 5)


def test_an_attack_reports_what_it_cost(
    convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    """Of PGD: a forward and a backward a step, and one forward that verifies."""
    x, _ = images
    y, seen = convolutional.eval()(x).argmax(1), list[Event]()
    for exact in (True, False):
        spat.evaluate(convolutional, x, y, "pgd-3", eps=1e-6, exact=exact, sink=seen.append)
    plain, fast = (e.values for e in seen if e.kind == "attack")
    assert (plain["forwards"], plain["backwards"]) == (6 * 4, 6 * 3)
    assert (fast["forwards"], fast["backwards"]) == (6 * 5, 6 * 3)  # the copy's verdict as well


def test_counting_leaves_no_trace(
    convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, _ = images
    convolutional.eval()
    assert torch.equal(Counted(convolutional)(x), convolutional(x))
    assert not any(module._forward_hooks for module in convolutional.modules())
