"""BatchNorm whose statistics are those of the whole batch, although each process has a share.

    mean = sum x / n,   var = sum (x - mean)^2 / n        sums over all processes
    y  = w (x - mean) r + b,   r = 1 / sqrt(var + eps)
    dx = w r ( dy - ( sum dy + xhat sum dy xhat ) / n ),   xhat = (x - mean) r

One small sum over the processes forwards, one backwards. torch's own SyncBatchNorm needs a GPU; its
BatchNorm of a share has kernels that read an image once for all that is wanted here: they give the
share's statistics, the sums over its rows, and w r dy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from spat.defences._base import precise
from spat.world import World


def whole_batch_norm(module: _BatchNorm, x: Tensor, world: World) -> Tensor:
    """What `module`, in training mode, would make of this share inside of the whole batch."""
    mean, var, n = moments(x, world)
    _track(module, mean, var * (n / (n - 1).clamp_min(1)))
    y: Tensor = _Normalised.apply(  # type: ignore[no-untyped-call]
        x, module.weight, module.bias, mean, var, module.eps, n, world
    )
    return y


@torch.no_grad()
def moments(x: Tensor, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel over all processes' images, and how many numbers that is.

    In double precision, because squares are summed before the mean is known.
    """
    none = x.new_zeros(
        x.shape[1], dtype=precise(x[:0]).dtype
    )  # running statistics, left as they are
    own = torch.batch_norm_update_stats(x, none, none.clone(), 0.0)
    mean, var = (found.double() for found in own)
    n = torch.full_like(mean[:1], x.numel() / x.shape[1])
    sums = world.total(torch.cat([n * mean, n * (var + mean.square()), n]))
    whole = sums[-1]  # left on its device: reading it would make a GPU wait
    mean, square = (sums[:-1] / whole).chunk(2)
    var = (square - mean.square()).clamp_min(0)
    return mean.to(none), var.to(none), whole.to(none)


@torch.no_grad()
def _track(module: _BatchNorm, mean: Tensor, unbiased: Tensor) -> None:
    """The running statistics, as torch keeps them."""
    if module.running_mean is None or module.running_var is None:
        return
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.add_(1)
    share = module.momentum
    if share is None:  # a plain average over all batches so far
        share = 1 / float(module.num_batches_tracked)
    module.running_mean.lerp_(mean.to(module.running_mean), share)
    module.running_var.lerp_(unbiased.to(module.running_var), share)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        eps: float,
        n: Tensor,
        world: World,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var, n)
        ctx.eps, ctx.world = eps, world
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, mean, var, n = ctx.saved_tensors
        w = torch.ones_like(mean) if weight is None else weight
        dx, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradients[0], x, w, mean, var, None, None, False, ctx.eps, [True, True, True]
        )
        s, t = ctx.world.total(torch.cat([of_bias, of_weight])).chunk(2)
        r = torch.rsqrt(var + ctx.eps)
        slope = -w * r * r * t / n
        offset = -w * r * s / n - slope * mean
        none, one = torch.zeros_like(mean), torch.ones_like(mean)
        dx += F.batch_norm(x, none, one, slope, offset, False, 0.0, 0.0)  # slope x + offset
        learnt = (None, None) if weight is None else (of_weight, of_bias)
        return dx, *learnt, None, None, None, None, None
