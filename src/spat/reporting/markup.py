"""HTML by function calls: every text goes through `escape`, every element through `tag`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Characters that HTML cannot hold even when escaped; a file name or a setting may contain them.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
VOID = ("img", "meta", "circle", "line", "path", "polyline", "rect")


def escape(text: object) -> str:
    """Any text as it may stand in an element or in a quoted attribute."""
    return html.escape(FORBIDDEN.sub("\ufffd", str(text)), quote=True)


def tag(name: str, /, *content: str, class_: str | bool = "", **attributes: Any) -> str:
    """An element; `content` is HTML already. An attribute that is None or False is left out.

    An underscore in an attribute's name stands for a hyphen.
    """
    given = {"class": class_ or None, **attributes}
    shown = "".join(
        f' {key.replace("_", "-")}="{escape(value)}"'
        for key, value in given.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return f"<{name}{shown}/>"
    return f"<{name}{shown}>{''.join(content)}</{name}>"


def table(caption: str, head: Sequence[str], rows: Iterable[str], class_: str) -> str:
    """A table with a heading for each column; `rows` are elements already."""
    cells = (tag("th", escape(cell), scope="col") for cell in head)
    return tag(
        "table",
        tag("caption", escape(caption)),
        tag("thead", tag("tr", *cells)),
        tag("tbody", *rows),
        class_=class_,
    )


def scrolling(wide: str) -> str:
    """A wide table scrolls by itself on a phone, the page does not; the keyboard reaches it too."""
    return tag("div", wide, class_="scroll", tabindex="0")


def pairs(values: Mapping[str, str]) -> str:
    """A two-column table of names and values."""
    rows = (
        tag("tr", tag("th", escape(name), scope="row"), tag("td", escape(value)))
        for name, value in values.items()
    )
    return tag("table", tag("tbody", *rows), class_="pairs")
