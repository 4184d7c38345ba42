"""Per-example loss terms, in log space; every function returns a tensor [n].

z: logits [n, C].  y: labels [n].  lp = log softmax(z): finite where softmax itself underflows,
so that values and gradients stay finite for any logits that are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from spat.errors import unknown


def ce(z: Tensor, y: Tensor) -> Tensor:
    """Cross entropy: -log p_y."""
    return F.cross_entropy(z, y, reduction="none")


def log_ratio(z: Tensor, z_adv: Tensor, floor: float = 0.0) -> Tensor:
    """t_j = p_j log(p_j / q_j), [n, C]: the terms whose sum over the classes is KL(p || q).

    floor: added to q inside the logarithm, as some published codes do
    """
    lp, lq = z.log_softmax(1), z_adv.log_softmax(1)
    return z.softmax(1) * (lp - _log_plus(lq, floor))


def kl(z: Tensor, z_adv: Tensor) -> Tensor:
    """KL(p || q) of the clean distribution p from the adversarial one q."""
    return log_ratio(z, z_adv).sum(1)


def runner_up(z: Tensor, y: Tensor) -> Tensor:
    """[n] the best class other than y; the label is masked, so that ties have one answer."""
    return z.scatter(1, y[:, None], -torch.inf).argmax(1)


def log_rest(z: Tensor, k: Tensor) -> Tensor:
    """log(1 - p_k), summed over the other classes: exact where p_k itself rounds to 1."""
    return z.log_softmax(1).scatter(1, k[:, None], -torch.inf).logsumexp(1)


def boosted_ce(z: Tensor, y: Tensor, slack: float = 0.0) -> Tensor:
    """MART's -log p_y - log(1 + slack - p_k), k the best other class."""
    return ce(z, y) - _log_plus(log_rest(z, runner_up(z, y)), slack)


def _log_plus(log_value: Tensor, constant: float) -> Tensor:
    """log(value + constant) from log(value)."""
    if constant == 0:
        return log_value
    return torch.logaddexp(log_value, torch.full_like(log_value, math.log(constant)))


def margin(z: Tensor, y: Tensor) -> Tensor:
    """z_y - max over the other classes: negative where the example is misclassified."""
    rival = z.scatter(1, y[:, None], -torch.inf).amax(1)
    return z.gather(1, y[:, None]).squeeze(1) - rival


def dlr(z: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce & Hein 2020), to be maximised; needs three classes."""
    ordered = z.sort(1).values
    return -margin(z, y) / (ordered[:, -1] - ordered[:, -3] + 1e-12)


AttackLoss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""What an attack maximises: (adversarial logits, labels, clean logits or None) -> [n]."""


def _kl_to_clean(z: Tensor, y: Tensor, clean: Tensor | None) -> Tensor:
    assert clean is not None
    return kl(clean, z)


ATTACK_LOSSES: dict[str, AttackLoss] = {
    "ce": lambda z, y, clean: ce(z, y),
    "kl": _kl_to_clean,
    "margin": lambda z, y, clean: -margin(z, y),
    "dlr": lambda z, y, clean: dlr(z, y),
}


def attack_loss(name: str) -> AttackLoss:
    """The loss an attack maximises, by name."""
    if name not in ATTACK_LOSSES:
        raise unknown("attack loss", name, ATTACK_LOSSES)
    return ATTACK_LOSSES[name]
