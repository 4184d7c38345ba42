"""FAB: the smallest perturbation, by the nearest linearised boundary with any class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spat.attacks._fab import BoundarySearch
from spat.attacks._state import column
from spat.attacks._targets import towards

TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FAB(BoundarySearch):
    """Fast adaptive boundary attack (Croce & Hein 2020); one gradient per class and step."""

    def rounds(self, classes: int) -> int:
        return 1

    def gradients(self, classes: int) -> int:
        return classes

    def plane(self, z: Tensor, logits: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Of all other classes, the one whose hyperplane is nearest in the dual norm."""
        nearest = torch.full_like(logits[:, 0], torch.inf).detach()
        best_gap, best = torch.zeros_like(nearest), torch.zeros_like(z).detach()
        for c in range(logits.shape[1]):
            gap = towards(logits, y, torch.full_like(y, c))
            last = c == logits.shape[1] - 1
            (gradient,) = torch.autograd.grad(gap.sum(), z, retain_graph=not last)
            gap = gap.detach()
            away = (gap.abs() / (self._dual(gradient) + TINY)).where(y != c, torch.inf)
            nearer = away < nearest
            nearest = torch.where(nearer, away, nearest)
            best_gap = torch.where(nearer, gap, best_gap)
            best = torch.where(column(nearer, z), gradient, best)
        return best_gap, best

    def _dual(self, w: Tensor) -> Tensor:
        flat = w.flatten(1)
        return flat.abs().sum(1) if self.norm == "linf" else flat.square().sum(1).sqrt()
