"""How numbers read, the same everywhere; nothing here knows where they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TextIO, TypeGuard

NORMS = {"linf": "L\u221e", "l2": "L2"}
# What our own texts may hold beyond ASCII: infinity, dashes, times, a box line, plus-minus.
UNICODE = "\u221e\u2013\u00d7\u2500\u00b1"


def fraction(eps: float) -> str:
    """A budget as people write it: 8/255 where it is a multiple of 1/255, else 0.3.

    The few that are both, such as 0.2 = 51/255, read better as decimals.
    """
    steps = round(eps * 255)
    is_multiple = abs(eps * 255 - steps) < 1e-5  # a float32 eps is off by up to 8e-6 steps
    return f"{steps}/255" if is_multiple and steps % 51 else f"{eps:g}"


def budget(eps: float, norm: str) -> str:
    """The threat in a few letters; its spaces do not break."""
    return f"eps\u00a0{fraction(eps)}\u00a0({norm_name(norm)})"


def sample(n: int) -> str:
    return f"n\u00a0=\u00a0{n}"


def norm_name(norm: str, plain: bool = False) -> str:
    name = NORMS.get(norm, norm)
    return name.replace("\u221e", "inf") if plain else name


def percent(share: Any, digits: int = 1) -> str:
    """A share as a percentage; nothing where there is no number."""
    return f"{100 * share:.{digits}f}%" if is_number(share) else ""


def number(value: Any, form: str = ".4g") -> str:
    return format(value, form) if is_number(value) else ""


def count(value: Any) -> str:
    return number(value, ",")


def duration(seconds: Any) -> str:
    """Seconds as people say them; nothing where there is no finite number."""
    if not is_number(seconds) or not 0 <= seconds < 1e9:
        return ""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def terms(values: Mapping[str, Any]) -> dict[str, str]:
    """The named parts of a loss in an event's values."""
    found = {name.partition("term.")[2]: number(v) for name, v in values.items()}
    return {name: shown for name, shown in found.items() if name and shown}


def listing(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def is_unicode(stream: TextIO) -> bool:
    """Whether a stream can show what our texts hold; one without an encoding is text in memory."""
    try:
        UNICODE.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def showable(text: str, stream: TextIO) -> str:
    """Text that a stream can be given without an error; what it cannot show is spelled out."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
