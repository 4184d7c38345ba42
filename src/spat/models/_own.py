"""A user's own model, by import path: `package.module:factory` or `path/to/file.py:factory`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from spat.errors import UserError, told, unknown
from spat.rng import derive


def find_own(path: str) -> Callable[..., Any]:
    """The function or class that an import path stands for."""
    where, _, attribute = path.rpartition(":")
    if not where or not attribute:
        raise UserError(
            "your own model is named package.module:factory or path/to/file.py:factory, "
            f"got {path!r}."
        )
    module = _file(where) if where.endswith(".py") else _module(where)
    if not hasattr(module, attribute):
        raise unknown(f"factory in {where}", attribute, _defined_in(module))
    found = getattr(module, attribute)
    if isinstance(found, nn.Module) or not callable(found):
        raise UserError(
            f"{path} must be a function or class that builds a model, got {_kind(found)}."
        )
    return found  # type: ignore[no-any-return]


def build_own(path: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> nn.Module:
    """Call a user's factory with those of the settings that it accepts."""
    with _importable(path.rpartition(":")[0]):
        try:
            model = factory(**_accepted(factory, settings))
        except Exception as error:
            raise UserError(f"{path} raised {told(error)}.") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{path} must return a torch.nn.Module, got {_kind(model)}.")
    return model


def _accepted(factory: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(factory).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(settings)
    named = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in settings.items() if name in named}


def _module(name: str) -> ModuleType:
    with _importable(name):
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise UserError(f"cannot import {name} from {Path.cwd()}: {told(error)}.") from error


def _file(name: str) -> ModuleType:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"there is no file {path} to take a model from.")
    # Not under its own name, which may be that of an installed package.
    spec = importlib.util.spec_from_file_location(f"own_model_{derive(str(path)):x}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    with _importable(name):
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[spec.name]
            raise UserError(f"cannot import {path}: {told(error)}.") from error
    return module


@contextmanager
def _importable(where: str) -> Iterator[None]:
    """Imports also look in the current folder and, for a file, beside it, as `python` does."""
    beside = [str(Path(where).expanduser().resolve().parent)] if where.endswith(".py") else []
    folders = [*beside, str(Path.cwd())]
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)


def _defined_in(module: ModuleType) -> list[str]:
    """The functions and classes of a module, without those it imports."""
    named = vars(module).items()
    return [name for name, v in named if getattr(v, "__module__", "") == module.__name__]


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"
