"""An experiment as one frozen value: read from TOML, overridden by flags, shown, hashed.

Settings are flat: `epochs`, `lr`, `data`, `model.width`, `defence.scale`, `defence.attack.steps`,
`evaluation.batch_size`; the verb `evaluate`, which does not train, takes the last by its bare name.
A TOML table `[defence]` with `name = "spat"` means the same as `defence = "spat"` and dotted keys.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from spat import catalog
from spat.convert import convert
from spat.errors import UserError, unknown
from spat.interval import interval
from spat.limits import limits
from spat.phases import check_attack_phases, check_image_phases

EVALUATION = "evaluation."
COMPONENTS = {"data": "dataset", "model": "model", "defence": "defence"}
# What data and defence ask of a model; one of your own is given those that it accepts.
ASKED = {
    "classes": int,
    "channels": int,
    "size": int,
    "head": str,
    "head_bias": bool,
    "scale": float,
}
_AT_LEAST = {
    "epochs": 1,
    "batch_size": 1,
    "micro_batch": 1,
    "validation_images": 1,
    "weight_decay": 0,
    "warmup": 0,
}
Flat = Mapping[str, Any]
Norm = Literal["linf", "l2"]
AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """A component by name, with the settings given for it."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained, whatever the defence.

    epochs: passes over the training set
    batch_size: images an update; auto: what memory has room for, within reason
    micro_batch: images that go through the model at once, all that BatchNorm sees; none: all
    lr: learning rate at its peak
    momentum: of SGD
    weight_decay: of every parameter, as in the field's codes
    schedule: of the learning rate: steps, linear, cosine, one-cycle or constant
    milestones: epochs, counted from 1, at which the rate of steps or linear reaches a level
    levels: shares of lr at the milestones; by default a tenth, a hundredth and so on
    warmup: epochs (or a part of one) of linear rise to the full rate
    attack_ramp: share of training over which the inner attack grows from one step to all
    eps_ramp: share of training over which the inner attack's eps grows from a tenth to all
    attack_steps: the inner attack's steps in each phase of training, such as 1,5,10
    attack_sizes: shares of eps that a step is in each phase; by default fewer steps are longer ones
    attack_milestones: epochs, counted from 1, at which a phase begins; by default equal phases
    image_scales: side of the training images in each phase, as a share of theirs: 0.5,0.75,1
    image_milestones: epochs, counted from 1, at which a phase begins; by default equal phases
    ema: decay of a running average of the weights, which is then what is evaluated; 0: none
    augment: auto (what suits the data set), none, or crop-flip
    validation: share of the training set held out to choose the best epoch
    validation_images: at most so many of them are attacked after each epoch
    precision: float32, bfloat16 (mixed; losses never), or auto: bfloat16 where it is fast
    exact: attack the model itself in float32: iterates are those of the literal algorithm, slower
    compile: the attacked copy: off, inductor (torch.compile), or cuda-graphs on a GPU
    save_every: how often a checkpoint is written, besides one an epoch: 10s, 5m, 2h or 200steps
    sync_batchnorm: of several processes: BatchNorm's statistics are those of the whole batch
    guard: against overfitting: warn, or rollback to the last good epoch at half the rate, or off
    """

    epochs: int = 100
    batch_size: int | Literal["auto"] = 128
    micro_batch: int | None = None
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    schedule: Literal["steps", "linear", "cosine", "one-cycle", "constant"] = "steps"
    milestones: tuple[int, ...] = (75, 90)
    levels: tuple[float, ...] = ()
    warmup: float = 0.0
    attack_ramp: float = 0.0
    eps_ramp: float = 0.0
    attack_steps: tuple[int, ...] = ()
    attack_sizes: tuple[float, ...] = ()
    attack_milestones: tuple[int, ...] = ()
    image_scales: tuple[float, ...] = ()
    image_milestones: tuple[int, ...] = ()
    ema: float = 0.0
    augment: Literal["auto", "none", "crop-flip"] = "auto"
    validation: float = 0.1
    validation_images: int = 1000
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    exact: bool = False
    compile: Literal["off", "inductor", "cuda-graphs"] = "off"
    save_every: str | float = "10m"
    sync_batchnorm: bool = True
    guard: Literal["warn", "rollback", "off"] = "warn"

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if isinstance(value, int | float) and not value >= least:
                raise UserError(f"{name} must be {least} or more, got {value:g}.")
        self._check_sizes()
        if not self.lr > 0:
            raise UserError(f"lr must be positive, got {self.lr:g}.")
        interval(self.save_every, "save_every")
        for name in ("attack_ramp", "eps_ramp", "momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must lie in [0, 1], got {getattr(self, name):g}.")
        self._check_schedule()
        for name in ("validation", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must lie in [0, 1), got {getattr(self, name):g}.")
        check_attack_phases(
            self.attack_milestones,
            self.epochs,
            attack_steps=self.attack_steps,
            attack_sizes=self.attack_sizes,
        )
        if self.attack_steps and self.attack_ramp:
            raise UserError(
                "attack_steps and attack_ramp both decide how many steps the inner attack has: "
                "give one of them."
            )
        check_image_phases(self.image_milestones, self.epochs, self.image_scales)

    def _check_schedule(self) -> None:
        if list(self.milestones) != sorted({max(1, epoch) for epoch in self.milestones}):
            raise UserError(
                f"milestones must be epochs from 1 in rising order, got {list(self.milestones)}."
            )
        if self.levels and len(self.levels) != len(self.milestones):
            raise UserError(
                f"levels must be as many as milestones ({len(self.milestones)}), "
                f"got {len(self.levels)}."
            )

    @property
    def size(self) -> int:
        """Images an update, once auto is a number."""
        assert isinstance(self.batch_size, int)
        return self.batch_size

    def _check_sizes(self) -> None:
        if isinstance(self.batch_size, str) and self.batch_size != AUTO:
            raise UserError(f"batch_size must be a whole number or auto, got {self.batch_size!r}.")
        if self.micro_batch is None:
            return
        if isinstance(self.batch_size, str):
            raise UserError(
                f"micro_batch {self.micro_batch} already bounds the memory of a step: give "
                "batch_size a number instead of auto."
            )
        if self.micro_batch > self.batch_size:
            raise UserError(
                f"micro_batch must be at most batch_size ({self.batch_size}), "
                f"got {self.micro_batch}."
            )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a model is attacked, whatever the attacks.

    batch_size: images at a time: a number, or auto: what suits the device
    exact: attack the model itself, not a fast copy, and give aa the official code's verdicts
    within: stop once half the worst case's 95% interval is so narrow, such as 1pp; see budget
    budget: stop after so long, such as 5m; both attack the images in a random order, in waves
    save_every: how often the state is saved, to go on from: 10s, 5m or 2h
    """

    batch_size: int | Literal["auto"] = "auto"
    exact: bool = False
    within: str | float | None = None
    budget: str | float | None = None
    save_every: str | float = "2m"

    def __post_init__(self) -> None:
        if self.batch_size != "auto" and self.batch_size < 1:
            raise UserError(f"batch_size must be 1 or more, or auto, got {self.batch_size}.")
        limits(self.within, self.budget)
        interval(self.save_every, "save_every")

    @property
    def size(self) -> int | None:
        """Of a batch; None for what suits the device."""
        return None if self.batch_size == "auto" else self.batch_size


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides a result.

    eps: budget of training and evaluation; by default the data set's usual one
    norm: of the budget: linf or l2
    attacks: what the trained model is evaluated against
    n: evaluate on so many test images, the first ones; by default on all
    seed: decides every random number
    device: auto, cpu, cuda or cuda:0 and so on
    """

    data: Choice = Choice("mnist-mini")
    model: Choice = Choice("small-cnn")
    defence: Choice = Choice("spat")
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    eps: float | None = None
    norm: Norm = "linf"
    attacks: tuple[str, ...] = ("pgd-20", "cw")
    n: int | None = None
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.n is not None and self.n < 1:
            raise UserError(f"n must be 1 or more, got {self.n}.")


def read(path: Path) -> dict[str, Any]:
    """The flat settings of a TOML file."""
    return settings_of(read_tree(path))


def read_tree(path: Path) -> dict[str, Any]:
    """A TOML file as it is written."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"there is no settings file {path}.") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from None


def settings_of(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The tables of a settings file as flat settings."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= settings_of(value, f"{prefix}{key}.")
        elif key == "name" and prefix[:-1] in COMPONENTS:
            found[prefix[:-1]] = value
        else:
            found[prefix + key] = value
    return found


def from_recipe(name: str, given: Flat) -> dict[str, Any]:
    """The flat settings of a recipe, for the defence that is given if it asks for one."""
    known = {setting.name for setting in catalog.settings("recipe", name)}
    asked = {key: given[key] for key in known if key in given}
    return flatten(catalog.build("recipe", name, **asked))


def experiment(flat: Flat) -> Experiment:
    """Build the experiment that flat settings describe; unknown ones get the nearest name."""
    known = known_settings(flat)
    for key in flat:
        if key not in known:
            raise unknown("setting", key, _siblings(key, known))
    typed = {key: convert(value, known[key].annotation, key) for key, value in flat.items()}
    own = {key: typed[key] for key in _names(Experiment) if key in typed and key not in COMPONENTS}
    training = Training(**{key: typed[key] for key in _names(Training) if key in typed})
    evaluation = Evaluation(**_under(EVALUATION, typed))
    return Experiment(
        data=_choice("data", typed),
        model=_choice("model", typed),
        defence=_choice("defence", typed),
        training=training,
        evaluation=evaluation,
        **own,
    )


def overlaid(below: Flat, above: Flat) -> dict[str, Any]:
    """Settings on top of others; a component chosen anew keeps none of what the other one had."""
    anew = {
        key
        for key in COMPONENTS
        if key in above and above[key] != below.get(key, _default_name(key))
    }
    kept = {key: value for key, value in below.items() if key.partition(".")[0] not in anew}
    return {**kept, **above}


def known_settings(flat: Flat) -> dict[str, catalog.Setting]:
    """Every setting that can be given, for the components these settings choose."""
    owned = (*catalog.flatten(Training), *catalog.flatten(Experiment))
    known = {s.name: s for s in owned if "." not in s.name or s.name.startswith(EVALUATION)}
    for key, kind in COMPONENTS.items():
        name = flat.get(key, _default_name(key))
        if not isinstance(name, str):
            raise UserError(f"{key} must be the name of a {kind}, see `spat list`, got {name!r}.")
        summary = f"{kind} by name, see `spat list`"
        known[key] = catalog.Setting(key, str, _default_name(key), summary)
        for setting in _own_settings() if is_import_path(name) else catalog.settings(kind, name):
            full = f"{key}.{setting.name}"
            known[full] = catalog.Setting(full, setting.annotation, setting.default, setting.help)
    return known


def _own_settings() -> list[catalog.Setting]:
    about = "given to your own model if it accepts it; by default what suits data and defence"
    return [catalog.Setting(name, kind, catalog.MISSING, about) for name, kind in ASKED.items()]


def is_import_path(name: str) -> bool:
    """`package.module:factory` or `path/to/file.py:factory` names the user's own model."""
    return ":" in name


def flatten(given: Experiment) -> dict[str, Any]:
    """The flat settings of an experiment: the inverse of `experiment`."""
    flat: dict[str, Any] = {}
    for key in COMPONENTS:
        choice = getattr(given, key)
        flat[key] = choice.name
        flat |= {f"{key}.{name}": value for name, value in choice.settings.items()}
    flat |= {key: getattr(given, key) for key in _names(Experiment) if key not in _STRUCTURE}
    flat |= {key: getattr(given.training, key) for key in _names(Training)}
    flat |= {EVALUATION + key: getattr(given.evaluation, key) for key in _names(Evaluation)}
    return {key: list(v) if isinstance(v, tuple) else v for key, v in flat.items()}


def digest(flat: Flat) -> str:
    """A short name for exactly these settings."""
    text = json.dumps(dict(flat), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_STRUCTURE = ("training", "evaluation", *COMPONENTS)


def _siblings(key: str, known: Mapping[str, Any]) -> list[str]:
    """The settings of the same component; all of them would drown the nearest one."""
    owner = key.rpartition(".")[0]
    return [name for name in known if name.rpartition(".")[0] == owner] or list(known)


def _choice(key: str, typed: Flat) -> Choice:
    return Choice(typed.get(key, _default_name(key)), _under(key + ".", typed))


def _under(prefix: str, typed: Flat) -> dict[str, Any]:
    return {name[len(prefix) :]: v for name, v in typed.items() if name.startswith(prefix)}


def _default_name(key: str) -> str:
    default = Experiment.__dataclass_fields__[key].default
    assert default is not MISSING
    return str(default.name)


def _names(owner: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(owner))
