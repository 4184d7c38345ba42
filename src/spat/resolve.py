"""From what was asked for to a plan with nothing left open: the data loaded, every default filled.

What the data set decides (classes, channels, usual budget), the defence asks of the model (a cosine
head, its scale) and the device offers is written into the settings before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from spat import catalog, config, tensorfile
from spat.config import Choice, Experiment, Training
from spat.datasets import Splits
from spat.defences._base import Defence
from spat.errors import UserError
from spat.evaluation import check_budget, plan_attacks
from spat.models import cosine_heads
from spat.threat import Norm
from spat.world import World, placed

FINGERPRINTED = 1000  # images that several processes compare before they train on them


@dataclass(frozen=True)
class Plan:
    """An experiment with nothing left open: its parts built, its settings flat.

    notes: what was chosen on the way that a user should hear of
    """

    experiment: Experiment
    splits: Splits
    defence: Defence
    device: torch.device
    flat: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def eps(self) -> float:
        assert self.experiment.eps is not None
        return self.experiment.eps


def resolve(given: Experiment) -> Plan:
    """Load the data, fill in what depends on it and build the defence."""
    dataset = catalog.build("dataset", given.data.name, **given.data.settings)
    splits = dataset.load(validation=given.training.validation, seed=given.seed)
    eps = given.eps if given.eps is not None else splits.eps
    if eps is None:
        raise UserError(f"data set {given.data.name!r} has no usual budget: give one, --eps 8/255.")
    check_budget(eps, given.norm)  # what is evaluated after training fails before it
    plan_attacks(given.attacks, eps=eps, norm=given.norm)
    choice = replace(given.defence, name=_preset_for(given.defence.name, given.model.name))
    defence = _with_budget(choice, given.norm, eps)
    model = Choice(given.model.name, _model_settings(given.model, splits, defence))
    training = replace(given.training, augment=_augmentation(given.training, splits))
    attacked = replace(choice, settings={**choice.settings, **_attack_settings(defence)})
    whole = replace(given, model=model, defence=attacked, training=training, eps=eps)
    flat = _everything(whole)
    return Plan(whole, splits, defence, find_device(given.device), flat)


def resolve_together(given: Experiment, world: World) -> tuple[Plan, World]:
    """The plan of processes that share it, each on a device of its own."""
    return together(world.agreed(lambda: resolve(given)), world)


def together(plan: Plan, world: World) -> tuple[Plan, World]:
    """The same for all processes, each on a device of its own."""
    world = world.agreed(lambda: placed(world, plan.device))
    unlike = len(set(world.gather(_fingerprint(plan)))) > 1
    if unlike:
        raise UserError(
            f"the {world.size} processes differ in their settings or their images: start each "
            "with the same words, on the same data."
        )
    return replace(plan, device=world.device if world.size > 1 else plan.device), world


def _fingerprint(plan: Plan) -> str:
    """Of what must be the same for all processes; of many images some stand for the others."""
    parts = {"train": plan.splits.train, "test": plan.splits.test}
    some = {name: part.x[:: max(1, len(part) // FINGERPRINTED)] for name, part in parts.items()}
    labels = {f"{name} labels": part.y for name, part in parts.items()}
    return config.digest(plan.flat) + tensorfile.digest(some | labels)


def require_head(model: nn.Module, defence: Defence, name: str) -> None:
    """A loss on cosines needs a cosine head; any other would be fed cosines as if logits."""
    has_cosines = bool(cosine_heads(model))
    if defence.head == "cosine" and not has_cosines:
        raise UserError(
            f"{name} works on cosines: give the model a cosine head "
            '(head="cosine", or spat.CosineHead as its last layer).'
        )
    if defence.head == "linear" and has_cosines:
        raise UserError(
            f"{name} works on logits, and bare cosines lie in [-1, 1]: "
            'give the model a linear head (head="linear").'
        )


def find_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device must be auto, cpu or cuda (cuda:0 ...), got {name!r}.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {name!r} is not there: torch sees no GPU; use --device cpu.")
    return device


def gpu_name(device: torch.device) -> str:
    """The accelerator behind a device, for a Record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "none"


def _preset_for(defence: str, model: str) -> str:
    """`spat-paper` with a `wrn` means `spat-paper-wrn`, where the defence has such a preset."""
    stem = catalog.stem("defence", defence)
    variant = f"{defence}-{model.partition('-')[0]}"
    return variant if variant in catalog.presets("defence", stem) else defence


def _with_budget(choice: Choice, norm: Norm, eps: float) -> Defence:
    """The defence, its inner attack under the experiment's threat unless it was given its own."""
    defence: Defence = catalog.build("defence", choice.name, **choice.settings)
    stated = {**catalog.find("defence", choice.name).preset, **choice.settings}
    attack = defence.attack
    changes: dict[str, Any] = {}
    if "attack.norm" not in stated:
        changes["norm"] = norm
    if "attack.eps" not in stated:
        changes["eps"] = eps
        if attack.step_size is not None and "attack.step_size" not in stated:
            # keeps the share of eps that a step was
            changes["step_size"] = attack.step_size * eps / float(attack.eps)
    return replace(defence, attack=replace(attack, **changes))


def _attack_settings(defence: Defence) -> dict[str, Any]:
    names = ("eps", "norm", "step_size")
    return {f"attack.{name}": getattr(defence.attack, name) for name in names}


def _model_settings(choice: Choice, splits: Splits, defence: Defence) -> dict[str, Any]:
    """What the data and the defence ask of a model, under what was asked for by name."""
    channels, height, width = splits.train.shape
    wanted: dict[str, Any] = {"classes": splits.train.classes, "channels": channels}
    if height == width:
        wanted["size"] = height
    if defence.head == "cosine":
        wanted |= {"head": "cosine", "scale": getattr(defence, "scale", 1.0)}
        wanted["head_bias"] = getattr(defence, "head_bias", False)
    if not config.is_import_path(choice.name):
        known = {setting.name for setting in catalog.settings("model", choice.name)}
        if "size" in known - wanted.keys():
            raise UserError(
                f"{choice.name} takes square images, got {height} x {width} pixels; "
                "resnet18 takes images of any size."
            )
        wanted = {key: value for key, value in wanted.items() if key in known}
    return {**wanted, **choice.settings}


def _augmentation(training: Training, splits: Splits) -> Any:
    if training.augment != "auto":
        return training.augment
    return "crop-flip" if splits.augment else "none"


def _everything(whole: Experiment) -> dict[str, Any]:
    """The flat settings with every default of every component written out."""
    flat = config.flatten(whole)
    defaults = {
        key: setting.default
        for key, setting in config.known_settings(flat).items()
        if setting.default is not catalog.MISSING and "." in key
    }
    return {**defaults, **flat}
