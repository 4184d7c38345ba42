"""The slow twin: SPAT's training step as published codes write it, with nothing saved or shared.

Plain NCHW float32; the clean logits are recomputed at each of the K steps, with a graph that nobody
needs; the gradient is taken with respect to x' alone, as in the authors' code. `model` returns
cosines. Symbols are those of the defence: s scale, alpha, beta, lambda.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softmax

S, ALPHA, BETA, LAMBDA = 5.0, 0.2, 0.2, 6.0


def robustness(c: Tensor, c_adv: Tensor) -> Tensor:
    p, q = softmax(S * c, dim=1), softmax(S * c_adv, dim=1)
    t = p * torch.log(p / q)
    return (ALPHA * t.sum(dim=1) + (t * t).sum(dim=1)).mean()


def accuracy(c: Tensor, y: Tensor) -> Tensor:
    true = one_hot(y, c.shape[1])
    gains = true * (1 - c) + (1 - true) * c + BETA
    p = softmax(S * gains * c, dim=1)
    return -torch.log(p.gather(1, y[:, None])).mean()


def craft(
    model: nn.Module, x: Tensor, noise: Tensor, *, eps: float, step: float, steps: int
) -> Tensor:
    model.eval()
    x_adv = x.detach() + noise
    for _ in range(steps):
        x_adv.requires_grad_()
        loss = robustness(model(x), model(x_adv))
        (gradient,) = torch.autograd.grad(loss, [x_adv])
        x_adv = x_adv.detach() + step * torch.sign(gradient.detach())
        x_adv = torch.min(torch.max(x_adv, x - eps), x + eps)
        x_adv = torch.clamp(x_adv, 0.0, 1.0)
    model.train()
    return x_adv


def update(
    model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, x_adv: Tensor, y: Tensor
) -> float:
    """The two training passes, clean then adversarial, and the optimiser's step."""
    optimiser.zero_grad()
    c, c_adv = model(x), model(x_adv)
    loss = accuracy(c, y) + LAMBDA * robustness(c, c_adv)
    loss.backward()
    optimiser.step()
    return loss.item()
