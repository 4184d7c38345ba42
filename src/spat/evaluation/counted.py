"""What an attack asks of a model: the examples that go forward and back through it."""

from __future__ import annotations

from torch import Tensor, nn


class Counted(nn.Module):
    """The model itself, seen through a count of the examples of every pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.model(x)
        self.forwards += len(x)
        if isinstance(z, Tensor) and z.requires_grad:
            z.register_hook(self._went_back)  # type: ignore[no-untyped-call]
        return z

    def _went_back(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
