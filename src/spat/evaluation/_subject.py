"""What is evaluated: the model, which alone has the say, and the copy that is attacked for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from spat.contracts import check_labels, check_logits, check_not_probabilities
from spat.errors import UserError
from spat.evaluation._room import Room
from spat.evaluation.counted import Counted
from spat.fast import rowwise, surrogate
from spat.modes import full_float32
from spat.threat import threat

CHECKED = 8  # images on which a copy must agree with the model


@dataclass(frozen=True)
class Examples:
    """The images of an evaluation, where the caller left them, and all that is known of them."""

    x: Tensor
    y: Tensor  # int64 [n], on the CPU like all that follows
    ids: Tensor  # int64 [n]: numbers in the data set, by which they get their random numbers
    clean: Tensor  # [n, C] logits of the model

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def predicted(self) -> Tensor:
        return self.clean.argmax(1)

    @property
    def classes(self) -> int:
        return self.clean.shape[1]


class Subject:
    """A model in evaluation mode, and a fast copy of it unless the evaluation is exact."""

    def __init__(self, model: nn.Module, device: torch.device, room: Room) -> None:
        self.device, self.room = device, room
        self.model = Counted(model)
        self.is_hastened = False
        self.notes: tuple[str, ...] = ()

    @cached_property
    def copy(self) -> Counted:
        """What is attacked in the model's place: without a fast copy, its own operations."""
        return Counted(rowwise(self.model.model))

    def hasten(self, x: Tensor) -> None:
        """Have a fast copy attacked in the model's place; x: some images to compare them on."""
        copy = surrogate(self.model.model, example=x[:CHECKED].to(self.device))
        self.copy, self.is_hastened = Counted(copy), True
        kind = f"attacked in place of the model: {copy.notes[0]}"
        self.notes = (f"{kind.removesuffix('.')}; the model itself confirmed each break.",)
        if not copy.separable:
            self.notes += (
                "the model may treat images of a batch together, or at random: "
                "its numbers may depend on the batch size.",
            )

    def examples(self, x: Tensor, y: Tensor, ids: Tensor) -> Examples:
        """The images with the model's own logits, refusing what is no classifier of them."""
        clean = self.room.rows(lambda rows: self._checked(x[rows]), len(x))
        check_labels(y, len(x), clean.shape[1])
        check_not_probabilities(clean)
        return Examples(x, y.long().cpu(), ids, clean)

    def judge(self, attack_norm: str, x_adv: Tensor, x: Tensor, eps: Tensor) -> tuple[Tensor, ...]:
        """The images inside their budget once more, and what the model takes them for."""
        inside = threat(attack_norm, eps).project(x_adv, x)
        with torch.no_grad(), full_float32():
            predicted = self.room.rows(lambda rows: self.model(inside[rows]).argmax(1), len(x))
        return inside, predicted

    @property
    def passes(self) -> tuple[int, int]:
        """Examples that went forward and back through either."""
        nets = {id(net): net for net in (self.model, self.copy)}.values()
        return sum(net.forwards for net in nets), sum(net.backwards for net in nets)

    def _checked(self, x: Tensor) -> Tensor:
        with torch.no_grad(), full_float32():
            z: Tensor = self.model(x.to(self.device))
        check_logits(z, len(x))
        return z.to(torch.promote_types(z.dtype, torch.float32))


def device_of(model: nn.Module, x: Tensor) -> torch.device:
    """Where the model is: images go to it, batch by batch."""
    devices = {str(p.device): p.device for p in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise UserError(
            f"the model lies on several devices ({', '.join(sorted(devices))}); "
            "move all of it to one: model.to(device)."
        )
    return next(iter(devices.values()), x.device)
