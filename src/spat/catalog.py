"""A file name is a component's name: list without importing, build by name, suggest on a typo.

The component of `attacks/mail_at.py` is called `mail-at`, and is the function or class in that file
whose name is the file's, upper case and underscores aside (`MailAT`). A file may hold `PRESETS`, a
dict from a preset's name to settings: `spat-paper` is the preset `paper` of `spat`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from types import ModuleType
from typing import Any

from spat.errors import UserError, unknown

PACKAGES = {
    "attack": "spat.attacks",
    "dataset": "spat.datasets",
    "defence": "spat.defences",
    "doubt": "spat.doubts",
    "model": "spat.models",
    "recipe": "spat.recipes",
}
MISSING = inspect.Parameter.empty


@dataclass(frozen=True)
class Setting:
    """One typed setting of a component; `name` is dotted when it belongs to a nested one."""

    name: str
    annotation: Any
    default: Any
    help: str


@dataclass(frozen=True)
class Component:
    """What a name stands for: the callable that builds it, and the settings its preset fixes."""

    kind: str
    name: str
    factory: Callable[..., Any]
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.factory) or "").partition("\n")[0]


def names(kind: str) -> list[str]:
    """The components of a kind, read from the folder: nothing is imported."""
    return sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(_folder(kind))
        if not module.name.startswith("_")
    )


def presets(kind: str, name: str) -> dict[str, dict[str, Any]]:
    """The presets of a component by their full names, such as `spat-paper`."""
    held = getattr(_module(kind, name), "PRESETS", {})
    return {f"{name}-{preset}": dict(values) for preset, values in held.items()}


def stem(kind: str, name: str) -> str:
    """The component that a name or the name of one of its presets belongs to."""
    wanted, known = _plain(name), names(kind)
    owners = [one for one in known if wanted == one or wanted.startswith(one + "-")]
    if not owners:
        raise unknown(kind, name, known)
    return max(owners, key=len)


def find(kind: str, name: str) -> Component:
    """The component (with its preset, if the name has one) that a name stands for."""
    wanted, owner = _plain(name), stem(kind, name)
    if wanted == owner:
        return Component(kind, wanted, _factory(kind, owner))
    held = presets(kind, owner)
    if wanted not in held:
        raise unknown(kind, name, [*names(kind), *held])
    return Component(kind, wanted, _factory(kind, owner), held[wanted])


def build(kind: str, name: str, **given: Any) -> Any:
    """Build a component by name; dotted settings (`attack.steps`) reach into nested ones."""
    component = find(kind, name)
    known = {setting.name: setting for setting in settings(kind, name)}
    for key in given:
        if key not in known and not _holds_parts(key, known):
            raise unknown(f"setting of {kind} {component.name!r}", key, known)
    merged = {**component.preset, **given}
    plain = {key: value for key, value in merged.items() if "." not in key}
    nested = {key: value for key, value in merged.items() if "." in key}
    required = [s.name for s in known.values() if s.default is MISSING and s.name not in plain]
    if required:
        raise UserError(f"{kind} {component.name!r} needs the setting {required[0]!r}.")
    return _reach_in(component.factory(**plain), nested)


def settings(kind: str, name: str) -> list[Setting]:
    """The typed settings of a component, nested ones flattened, with its preset's values."""
    component = find(kind, name)
    flat = flatten(component.factory)
    return [
        replace(s, default=component.preset[s.name]) if s.name in component.preset else s
        for s in flat
    ]


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _holds_parts(key: str, known: Mapping[str, Setting]) -> bool:
    return any(name.startswith(key + ".") for name in known)


def _reach_in(built: Any, nested: Mapping[str, Any]) -> Any:
    """Replace settings of the parts of a frozen component."""
    for key, value in nested.items():
        owner, _, rest = key.partition(".")
        part = getattr(built, owner)
        part = _reach_in(part, {rest: value}) if "." in rest else replace(part, **{rest: value})
        built = replace(built, **{owner: part})
    return built


def flatten(factory: Callable[..., Any], prefix: str = "") -> list[Setting]:
    """The typed settings of a callable, those of nested frozen values flattened to dotted names."""
    hints = typing.get_type_hints(factory)  # of a dataclass: its fields, inherited ones included
    texts = _documented(factory)
    flat: list[Setting] = []
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        default, name = parameter.default, prefix + parameter.name
        if is_dataclass(default) and not isinstance(default, type):
            parts = flatten(type(default), name + ".")
            flat += [_with_value(part, default, name) for part in parts]
        else:
            hint = hints.get(parameter.name, Any)
            flat.append(Setting(name, hint, default, texts.get(parameter.name, "")))
    return flat


def _with_value(part: Setting, owner: Any, prefix: str) -> Setting:
    value = owner
    for step in part.name[len(prefix) + 1 :].split("."):
        value = getattr(value, step)
    return replace(part, default=value)


def _documented(factory: Callable[..., Any]) -> dict[str, str]:
    """The lines `name: text` of the docstrings of a component and of the classes it extends."""
    owners = factory.__mro__ if inspect.isclass(factory) else (factory,)
    texts: dict[str, str] = {}
    for owner in reversed(owners):
        for line in (owner.__doc__ or "").splitlines():
            match = re.match(r"\s*(\w+): (.+)$", line)
            if match:
                texts[match[1]] = match[2].strip()
    return texts


def _folder(kind: str) -> list[str]:
    if kind not in PACKAGES:
        raise unknown("kind of component", kind, PACKAGES)
    spec = importlib.util.find_spec(PACKAGES[kind])
    return list(spec.submodule_search_locations or []) if spec else []


def _module(kind: str, name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGES[kind]}.{name.replace('-', '_')}")


def _factory(kind: str, name: str) -> Callable[..., Any]:
    module = _module(kind, name)
    plain = name.replace("-", "")
    for attribute, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        if own and callable(value) and attribute.lower().replace("_", "") == plain:
            return typing.cast(Callable[..., Any], value)
    raise UserError(f"{module.__name__} must define a class or function named {name!r}.")
