"""What an attack asks of a model: the examples that go forward and back through it."""

from __future__ import annotations

import threading

from torch import Tensor, nn


class Counted(nn.Module):
    """The model itself, seen through a count of the examples of every pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.separable = bool(getattr(model, "separable", False))
        self.forwards = self.backwards = 0
        self.lock = threading.Lock()  # blocks of a batch are worked on side by side

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.model(x)
        with self.lock:
            self.forwards += len(x)
        if isinstance(z, Tensor) and z.requires_grad:
            z.register_hook(self._went_back)  # type: ignore[no-untyped-call]
        return z

    def _went_back(self, gradient: Tensor) -> None:
        with self.lock:
            self.backwards += len(gradient)
