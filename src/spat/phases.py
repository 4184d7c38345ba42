"""Settings that change from phase to phase of training: what must hold of them.

There is one value before the first milestone and one from each on; without milestones the values
divide training into equal phases. A milestone is the epoch, counted from 1, that begins a phase.
"""

from __future__ import annotations

from collections.abc import Sequence

from spat.errors import UserError


def check_attack_phases(
    milestones: Sequence[int],
    epochs: int,
    *,
    attack_steps: Sequence[int],
    attack_sizes: Sequence[float],
) -> None:
    """Refuse numbers and lengths of inner steps that cannot be."""
    _check(milestones, epochs, "attack", attack_steps=attack_steps, attack_sizes=attack_sizes)
    for steps in attack_steps:
        if steps < 1:
            raise UserError(f"attack_steps must each be 1 or more, got {steps}.")
    for size in attack_sizes:
        if not size > 0:
            raise UserError(f"attack_sizes must each be a positive share of eps, got {size:g}.")


def check_image_phases(
    milestones: Sequence[int], epochs: int, image_scales: Sequence[float]
) -> None:
    """Refuse sizes of images that cannot be; training ends on the images as they are."""
    _check(milestones, epochs, "image", image_scales=image_scales)
    for scale in image_scales:
        if not 0 < scale <= 1:
            raise UserError(
                f"image_scales must each lie in (0, 1], shares of the images' side, got {scale:g}."
            )
    if image_scales and image_scales[-1] != 1:
        raise UserError(
            f"image_scales must end with 1, got {image_scales[-1]:g}: "
            "the model is evaluated on the images as they are."
        )


def _check(milestones: Sequence[int], epochs: int, owner: str, **values: Sequence[float]) -> None:
    """Milestones rise within the training, and there is a value for each phase."""
    given = {name: len(each) for name, each in values.items() if each}
    name = f"{owner}_milestones"
    if milestones and not given:
        raise UserError(f"{name} say when {' or '.join(values)} change: give those too.")
    if list(milestones) != sorted(set(milestones) & set(range(2, epochs + 1))):
        told = ", ".join(map(str, milestones))
        raise UserError(f"{name} must be rising epochs from 2 to {epochs}, the last, got {told}.")
    for which, count in given.items():
        if milestones and count != len(milestones) + 1:
            raise UserError(
                f"{which} must be one more than {name} ({len(milestones)}), got {count}."
            )
    if len(set(given.values())) > 1:
        counts = " and ".join(map(str, given.values()))
        raise UserError(f"{' and '.join(given)} must be as many, got {counts}.")
