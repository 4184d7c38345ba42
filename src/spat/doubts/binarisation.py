"""The binarisation test (Zimmermann et al. 2022): an attack must find what surely is there.

For each image a linear classifier on the model's own features is made that tells points inside the
budget (class 0, the image among them) from one point at its far end (class 1). So an adversarial
image exists by construction. An attack that cannot find it, with the settings of the evaluation,
proves nothing when it fails on the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spat.doubts._base import Doubt
from spat.doubts._subject import Connected, Subject
from spat.findings import Finding, Level
from spat.results import wilson
from spat.rng import PerExample, derive
from spat.threat import column

FAR = 20  # candidates for the point to be found: the one that stands out most is taken
RIDGE = 0.1  # of the mean variance: no weight on directions that the inner points do not show
SHRINK = 0.95  # inner points are at most so much of eps away, as in the paper


@dataclass(frozen=True, kw_only=True)
class Binarisation(Doubt):
    """The attack misses adversarial images that were planted on the model's own features.

    images: how many are tested
    inner: points inside the budget that each classifier is made on
    passed: share of found ones that must not surely be missed
    red: share of found ones that is surely not reached for red
    """

    images: int = 24
    inner: int = 100
    passed: float = 0.95
    red: float = 0.75
    advice = "the attack fails where success is certain: more steps, another step size or loss."

    def __call__(self, subject: Subject) -> Finding | None:
        layer = last_linear(subject.model)
        tested, found, lucky = 0, 0, 0
        for i in range(min(self.images, len(subject))):
            binary = self._binarised(subject, layer, i)
            if binary is None:
                continue
            x, y = subject.x[i : i + 1], subject.y.new_zeros(1)
            rng = PerExample(derive(subject.seed, "binarisation"), torch.tensor([i]))
            tested += 1
            found += _wins(binary, subject.attack(Connected(binary), x, y, rng=rng))
            lucky += _wins(binary, _points(subject, i, self.inner, 1.0, "luck"))
        if not tested:
            return None
        share, high = found / tested, wilson(found, tested)[1]
        level: Level = "red" if high < self.red else "amber" if high < self.passed else "green"
        return self.finding(
            level,
            f"of {tested} adversarial images planted on the model's features the attack finds "
            f"{found}, blind chance {lucky}.",
            found=share,
            found_by_chance=lucky / tested,
            tested=tested,
        )

    def _binarised(self, subject: Subject, layer: nn.Module | None, i: int) -> nn.Module | None:
        """The classifier of one image; None where the far point cannot be told from the others."""
        points = (
            subject.x[i : i + 1],
            _points(subject, i, self.inner, SHRINK, "inner"),
            _points(subject, i, FAR, 1.0, "far"),
        )
        with torch.no_grad():
            f = Features(subject.model, layer)(torch.cat(points)).double()
        inside, beyond = f[:-FAR], f[-FAR:]
        w = _discriminants(inside, beyond)
        low, high = (inside @ w.T).amax(0), (beyond * w).sum(1)
        best = int(((high - low) / (low - (inside[0] @ w.T)).clamp(min=1e-12)).argmax())
        w, low, high = w[best], low[best], high[best]
        if not high > low:
            return None
        bound = (low + high) / 2
        unit = subject.loss_scale * (bound - inside[0] @ w)  # at the image neither flat nor steep
        return Binarised(subject.model, layer, (w / unit).float(), float(bound / unit))


def _discriminants(inside: Tensor, beyond: Tensor) -> Tensor:
    """[far, d] Fisher's linear discriminant of the inner points against each far one.

    (X'X / (n - 1) + r I)^-1 delta by way of X X', as features are often more than points.
    """
    X, delta = inside - inside.mean(0), beyond - inside.mean(0)
    n, d = X.shape
    r = RIDGE * X.square().sum() / d + 1e-12  # n - 1 times the ridge
    inner = X @ X.T + r * torch.eye(n, dtype=X.dtype, device=X.device)
    explained: Tensor = X.T @ torch.linalg.solve(inner, X @ delta.T)
    return delta - explained.T


class Features(nn.Module):
    """What the last linear layer of a model is given, or its logits if it has none."""

    def __init__(self, model: nn.Module, layer: nn.Module | None) -> None:
        super().__init__()
        self.model, self.layer = model, layer

    def forward(self, x: Tensor) -> Tensor:
        with _inputs(self.layer) as seen:
            z: Tensor = self.model(x)
        f = seen[-1] if seen else z
        return f.flatten(1).float()


class Binarised(nn.Module):
    """Two logits: a linear classifier on the features of a model."""

    def __init__(self, model: nn.Module, layer: nn.Module | None, w: Tensor, b: float) -> None:
        super().__init__()
        self.features, self.w, self.b = Features(model, layer), w, b

    def forward(self, x: Tensor) -> Tensor:
        score = self.features(x) @ self.w - self.b
        return torch.stack([-score, score], 1)


@contextmanager
def _inputs(layer: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collects what a layer is called with."""
    seen: list[Tensor] = []
    if layer is None:
        yield seen
        return
    handle = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        handle.remove()


def last_linear(model: nn.Module) -> nn.Module | None:
    """The linear layer registered last: by custom the one that makes the logits."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    return layers[-1] if layers else None


def _points(subject: Subject, i: int, n: int, share: float, purpose: str) -> Tensor:
    """Random points around image i, at a distance of that share of eps."""
    x = subject.x[i : i + 1].expand(n, *subject.x.shape[1:])
    source = PerExample(derive(subject.seed, purpose, i), torch.arange(n))
    threat = subject.attack.threat
    step = threat.steepest(threat.start(x, source))
    return threat.project(x + share * column(subject.attack.eps, x) * step, x)


@torch.no_grad()
def _wins(binary: nn.Module, x: Tensor) -> bool:
    return bool((binary(x).argmax(1) == 1).any())
