"""What `spat evaluate --out RUN` was asked for, kept in RUN for `spat evaluate --resume RUN`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spat.errors import UserError

NAME = "evaluation.json"
FILES = ("out", "card", "save_adversarial")


@dataclass(frozen=True)
class Request:
    """The command line, settings still as texts."""

    target: str
    weights: str = "best"
    out: Path | None = None
    card: Path | None = None
    save_adversarial: Path | None = None
    save_each: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def save(self) -> None:
        from spat.results import write_json

        assert self.out is not None
        given = asdict(self)
        write_json(self.out / NAME, given | {name: _text(given[name]) for name in FILES})


def saved(folder: Path) -> Request:
    """What the evaluation in a folder was asked for, wherever the folder has been moved to."""
    from spat.results import read_json

    path = folder / NAME
    if not path.exists():
        resume = (folder / "settings.json").exists()
        way = f"; go on with: spat train --resume {folder}" if resume else ""
        raise UserError(f"{folder} is no folder of spat evaluate: it has no {NAME}{way}.")
    given = read_json(path)
    try:
        files = {name: _path(given[name]) for name in FILES}
        return Request(**{**given, **files, "out": folder})
    except (TypeError, KeyError):
        raise UserError(f"{path} is not a whole file of spat evaluate.") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
