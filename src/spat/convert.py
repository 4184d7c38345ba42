"""A value from a file or a flag as its setting's type: `8/255` is a number, `none` is None."""

from __future__ import annotations

import types
import typing
from fractions import Fraction
from typing import Any, Literal

from spat.errors import UserError

_NO = object()  # "this is not such a value"; None is a value


def convert(value: Any, annotation: Any, name: str) -> Any:
    """A value from a file or a flag as the type its setting has; `8/255` is a number."""
    for option in _options(annotation):
        converted = _convert_one(value, option)
        if converted is not _NO:
            return converted
    wanted = " or ".join(_describe(option) for option in _options(annotation))
    raise UserError(f"{name} must be {wanted}, got {value!r}.")


def _options(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _convert_one(value: Any, option: Any) -> Any:
    origin = typing.get_origin(option)
    if origin is Literal:
        return value if value in typing.get_args(option) else _NO
    if origin is tuple:
        return _convert_many(value, typing.get_args(option)[0])
    if option is types.NoneType:
        return None if value in (None, "none", "") else _NO
    converters = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}
    return converters[option](value) if option in converters else _NO


def _convert_many(value: Any, option: Any) -> Any:
    items = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        return _NO
    converted = tuple(_convert_one(item, option) for item in items)
    return _NO if _NO in converted else converted


def _to_bool(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words.get(value.lower(), _NO) if isinstance(value, str) else _NO


def _to_int(value: Any) -> Any:
    number = _to_float(value)
    return int(number) if number is not _NO and number == int(number) else _NO


def _to_float(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _NO
    try:
        exact = isinstance(value, str) and "/" in value
        number = float(Fraction(value.replace(" ", ""))) if exact else float(value)  # type: ignore[union-attr]
    except (ValueError, ZeroDivisionError):
        return _NO
    return number if abs(number) < float("inf") else _NO


def _to_str(value: Any) -> Any:
    return value if isinstance(value, str) else _NO


def _describe(option: Any) -> str:
    if typing.get_origin(option) is Literal:
        words = typing.get_args(option)
        return "one of " * (len(words) > 1) + ", ".join(words)
    if typing.get_origin(option) is tuple:
        return f"a list, each {_describe(typing.get_args(option)[0])}"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number such as 0.1 or 8/255",
        str: "a text",
        types.NoneType: "none",
    }
    return names.get(option, getattr(option, "__name__", str(option)))
