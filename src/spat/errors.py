"""The one exception a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """One sentence that names the value at fault and the way out; the CLI prints it bare."""


class NonFiniteError(UserError):
    """A model's output or a loss is NaN or infinite: training may have a way back from it."""


class ToldError(UserError):
    """Another process has told this mistake, or is about to: this one ends without a word."""


def told(error: Exception) -> str:
    """Somebody else's exception in the first line of its own words."""
    words = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def unknown(what: str, got: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a list: the nearest name, then the list."""
    choices = sorted(known)
    near = difflib.get_close_matches(got.lower(), choices, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(choices) if choices else "none"
    return UserError(f"unknown {what} {got!r}.{hint} Known: {listed}.")
