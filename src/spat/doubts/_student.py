"""A small network, quickly taught to imitate a model: a source for transfer attacks.

It sees the images under noise within the budget and the labels that the model gives them, so that
it learns the model and not the data. It has smooth gradients whatever the model has.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spat.doubts._subject import Subject
from spat.rng import generator, global_seed

WIDTH, BATCH, RATE = 16, 64, 3e-3


def student(subject: Subject, lessons: int) -> nn.Module:
    """In eval mode, on the device of the images."""
    x, y = _lessons(subject)
    with global_seed(x.device, subject.seed, "student"):
        net = _network(x, subject.classes).to(x.device)
    optimiser = torch.optim.Adam(net.parameters(), RATE)
    source = generator(subject.seed, "student", "order")
    with torch.enable_grad():
        for _ in range(lessons):
            at = torch.randint(len(x), (BATCH,), generator=source).to(x.device)
            optimiser.zero_grad()
            F.cross_entropy(net(x[at]), y[at]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return net.eval().requires_grad_(False)


def _lessons(subject: Subject) -> tuple[Tensor, Tensor]:
    """Clean and noisy images with the model's labels."""
    x = torch.cat([subject.x, *(subject.noisy(k) for k in range(3))])
    return x, subject.logits(x).argmax(1)


def _network(x: Tensor, classes: int) -> nn.Module:
    if x.ndim != 4:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(x[0].numel(), 8 * WIDTH),
            nn.ReLU(),
            nn.Linear(8 * WIDTH, classes),
        )
    channels = x.shape[1]
    side = [-(-length // 4) for length in x.shape[2:]]  # halved twice, rounded up
    return nn.Sequential(
        nn.Conv2d(channels, WIDTH, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * WIDTH * side[0] * side[1], classes),
    )
