"""The slow twin: training steps as published codes write them, with nothing saved or shared.

Plain NCHW; the clean logits are computed again at each of the K steps, with a graph that nobody
needs; the gradient is taken with respect to x' alone, as in the authors' codes. One liberty: each
logarithm of a softmax is a log_softmax. The gradient of a divergence between x and an x' next to it
is a small difference of large numbers: where their rounding differs, so do the signs of pixels.
Symbols are those of the defences; for SPAT, `model` returns cosines, and s is their scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, one_hot, softmax

S, ALPHA, BETA, LAMBDA = 5.0, 0.2, 0.2, 6.0
Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Twin:
    """What the inner attack maximises and what training minimises, of (model, x, x', y)."""

    inner: Loss
    outer: Loss


def madry_loss(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x_adv), y)


def trades_inner(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    return log_ratio(model(x), model(x_adv)).sum()


def trades_outer(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    z, z_adv = model(x), model(x_adv)
    return cross_entropy(z, y) + 6.0 * log_ratio(z, z_adv).sum(dim=1).mean()


def spat_inner(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    return robustness(model(x), model(x_adv))


def spat_outer(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    c, c_adv = model(x), model(x_adv)
    return accuracy(c, y) + LAMBDA * robustness(c, c_adv)


def robustness(c: Tensor, c_adv: Tensor) -> Tensor:
    t = log_ratio(S * c, S * c_adv)
    return (ALPHA * t.sum(dim=1) + (t * t).sum(dim=1)).mean()


def log_ratio(z: Tensor, z_adv: Tensor) -> Tensor:
    """p_j log(p_j / q_j)."""
    return softmax(z, dim=1) * (log_softmax(z, dim=1) - log_softmax(z_adv, dim=1))


def accuracy(c: Tensor, y: Tensor) -> Tensor:
    true = one_hot(y, c.shape[1])
    gains = true * (1 - c) + (1 - true) * c + BETA
    return -log_softmax(gains * (S * c), dim=1).gather(1, y[:, None]).mean()


TWINS = {
    "madry": Twin(madry_loss, madry_loss),
    "trades": Twin(trades_inner, trades_outer),
    "spat": Twin(spat_inner, spat_outer),
}


def craft(
    twin: Twin,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    x_adv: Tensor,
    *,
    eps: float,
    step: float,
    steps: int,
) -> Tensor:
    """x' after K steps from the start that is given."""
    model.eval()
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(twin.inner(model, x, x_adv, y), [x_adv])
        x_adv = x_adv.detach() + step * torch.sign(gradient.detach())
        x_adv = torch.min(torch.max(x_adv, x - eps), x + eps)
        x_adv = torch.clamp(x_adv, 0.0, 1.0)
    model.train()
    return x_adv


def update(
    twin: Twin,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    x_adv: Tensor,
) -> float:
    """The training passes, clean then adversarial, and the optimiser's step."""
    optimiser.zero_grad()
    loss = twin.outer(model, x, x_adv, y)
    loss.backward()
    optimiser.step()
    return loss.item()
