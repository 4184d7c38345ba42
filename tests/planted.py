"""Models whose robustness is known to be real, and the same models broken in twelve known ways."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spat

EPS = 0.1
Change = Callable[[Tensor], Tensor]


class Tiny(nn.Module):
    """Two convolutions and a head; fast enough for hundreds of attacks."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, 2, 2)
        self.conv2 = nn.Conv2d(8, 16, 5, 2, 2)
        self.hidden = nn.Linear(16 * 49, 32)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv2(F.relu(self.conv1(x))))
        logits: Tensor = self.head(F.relu(self.hidden(h.flatten(1))))
        return logits


class TinyResNet(nn.Module):
    """A residual block with BatchNorms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8))
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 * 49, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = self.down(F.relu(h + self.block(h)))
        logits: Tensor = self.head(h.flatten(1))
        return logits


class Wrapped(nn.Module):
    """A model with something done to its images or its logits."""

    def __init__(self, model: nn.Module, before: Change | None, after: Change | None) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.model(x if self.before is None else self.before(x))
        return z if self.after is None else self.after(z)


class BareCosines(nn.Module):
    """Cosines of a scale that nothing tells, as other people's code returns them."""

    def __init__(self, model: Tiny) -> None:
        super().__init__()
        self.features = copy.deepcopy(model)
        self.rows = nn.Parameter(model.head.weight.detach().clone())  # type: ignore[operator, union-attr]
        self.features.head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(self.features(x)), F.normalize(self.rows))


class Saturated(nn.Module):
    """Hidden units through a sigmoid so steep that it has no slope."""

    def __init__(self, model: nn.Module, steepness: float = 1e4) -> None:
        super().__init__()
        self.model, self.steepness = model, steepness

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(torch.sigmoid(self.steepness * (x - 0.45)))
        return logits


def dead_relu(x: Tensor) -> Tensor:
    """0 or 1 by two ReLUs of which one is always off, but on a strip that no pixel is on."""
    return 1 - F.relu(1 - F.relu(1e5 * (x - 0.45)))


def random_crop(x: Tensor) -> Tensor:
    top, left = torch.randint(5, (2,)).tolist()
    return F.pad(x, (2, 2, 2, 2))[..., top : top + 28, left : left + 28]


def train(model: nn.Module, *, steps: int, scale: float = 1.0, seed: int = 0) -> nn.Module:
    """Adversarially after the first epoch, with so many steps of PGD; zero: without attack."""
    x, y = spat.data("mnist-mini").train[:2000].floats()
    attack = spat.attack("pgd", eps=EPS, steps=steps, loss_scale=scale)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    order = torch.Generator().manual_seed(seed)
    for epoch in range(4):
        for at in torch.randperm(len(x), generator=order).split(64):
            x_adv = attack(model, x[at], y[at]) if steps and epoch else x[at]
            optimiser.zero_grad()
            F.cross_entropy(scale * model(x_adv), y[at]).backward()
            optimiser.step()
    return model.eval()


def honest(seed: int = 0) -> dict[str, nn.Module]:
    """Weak and strong ones: what they withstand, they withstand."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = {
            "undefended": (Tiny(nn.Linear(32, 10)), 0, 1.0),
            "adversarially trained": (Tiny(nn.Linear(32, 10)), 4, 1.0),
            "cosine head": (Tiny(spat.CosineHead(32, 10, scale=5.0)), 4, 5.0),
            "residual": (TinyResNet(), 0, 1.0),
        }
        return {
            name: train(model, steps=steps, scale=scale, seed=seed)
            for name, (model, steps, scale) in made.items()
        }


def broken(models: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The twelve, made of the honest ones."""
    plain, cosine = models["adversarially trained"], models["cosine head"]
    assert isinstance(cosine, Tiny)
    made = {
        "logits x 1000": Wrapped(plain, None, lambda z: 1000 * z),
        "logits / 1000": Wrapped(plain, None, lambda z: z / 1000),
        "cosine head at scale 1": BareCosines(cosine),
        "sign": Wrapped(plain, lambda x: (torch.sign(x - 0.45) + 1) / 2, None),
        "8-bit rounding": Wrapped(plain, lambda x: (255 * x).round() / 255, None),
        "random noise": Wrapped(plain, lambda x: x + 0.1 * torch.randn_like(x), None),
        "random crop": Wrapped(plain, random_crop, None),
        "softmax": Wrapped(plain, None, lambda z: z.softmax(1)),
        "dropout": Wrapped(plain, lambda x: F.dropout(x, 0.2, training=True), None),
        "detached": Wrapped(plain, lambda x: x.detach(), None),
        "sigmoid": Saturated(plain),
        "dead relu": Wrapped(plain, dead_relu, None),
    }
    return {name: model.eval() for name, model in made.items()}
