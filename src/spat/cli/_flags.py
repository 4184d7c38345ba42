"""Flags from typed settings: `--defence.scale 5`, `--batch-size 64`, `--defence.detach-gains`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from spat import catalog, config
from spat.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse, with its errors in the voice of all others."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog.removeprefix('spat ')}: {message}.")


def parser(verb: str, about: str, **more: Any) -> Parser:
    return Parser(
        prog=f"spat {verb}",
        description=about,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )


def settings_from(flags: Sequence[str]) -> dict[str, Any]:
    """`--name value` or `--name=value` as flat settings, still texts; a bare `--name` is true."""
    flat: dict[str, Any] = {}
    name: str | None = None
    for word in flags:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            flat[name] = value if equals else True
        elif name is not None:
            # Several words are a list: --attacks pgd-20 cw.
            flat[name] = word if flat[name] is True else f"{flat[name]} {word}"
        else:
            raise UserError(f"{word!r} is not a setting; settings look like --epochs 10.")
    return flat


def settings_help(flat: Mapping[str, Any]) -> str:
    """All settings, with types and defaults, of the components these settings choose."""
    head = "settings (a flag each, or a line in the --config file):"
    return "\n".join([head, *map(flag_help, config.known_settings(flat).values())])


def flag_help(setting: catalog.Setting) -> str:
    flag = "--" + setting.name.replace("_", "-")
    return f"  {flag} {_kind(setting)}".ljust(42) + f" {setting.help}{_default(setting)}"


def _kind(setting: catalog.Setting) -> str:
    return "" if setting.annotation is bool else setting.name.rpartition(".")[2].upper()


def _default(setting: catalog.Setting) -> str:
    if setting.default is catalog.MISSING:
        return ""
    return f" [{show(setting.default)}]"


def show(value: Any) -> str:
    """A setting's value as one would write it."""
    if isinstance(value, config.Choice):
        return value.name
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
