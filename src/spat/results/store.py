"""A store of Records that only grows: one file a record, nothing overwritten."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from spat.errors import UserError
from spat.records import SCHEMA, Measured, Record
from spat.results.files import as_json, read_json, write_new


def save(record: Record, folder: Path) -> Path:
    """Add a record to a folder and say where; a record already there is not written again.

    Nothing is overwritten: another result of the same settings and seed becomes a numbered
    sibling, and so does one whose place is taken by a broken file.
    """
    text = as_json(folder, record.to_json())
    return next(
        path
        for path in _names(folder, _stem(record))
        if _holds(path, text) or write_new(path, text)
    )


def load(path: Path) -> Record:
    """Read a record; what is no whole one is told in a sentence that names the file."""
    saved = read_json(path)
    if not isinstance(saved, dict) or "schema" not in saved:
        raise UserError(f"{path} is not a record of spat.")
    if saved["schema"] != SCHEMA:
        raise UserError(
            f"{path} has schema {saved['schema']!r} and this spat reads {SCHEMA}; "
            "use the version of spat that wrote it, or a newer one."
        )
    _check_fields(path, saved, Record)
    if not isinstance(saved["measured"], list) or not isinstance(saved["doubts"], list):
        raise UserError(f"{path} is not a record of spat: 'measured' and 'doubts' must be lists.")
    for row in saved["measured"]:
        _check_fields(path, row, Measured)
    return Record.from_json(saved)


def load_all(folder: Path) -> dict[Path, Record]:
    """Every record of a folder, by file name."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}.")
    return {path: load(path) for path in sorted(folder.glob("*.json"))}


def _names(folder: Path, stem: str) -> Iterator[Path]:
    yield folder / f"{stem}.json"
    for number in itertools.count(2):
        yield folder / f"{stem}.{number}.json"


def _stem(record: Record) -> str:
    seeds = "-".join(str(seed) for seed in record.seeds.values())
    return re.sub(r"[^\w-]", "_", f"{record.settings_hash}-seed-{seeds or 'none'}")


def _holds(path: Path, text: str) -> bool:
    """Whether the same record is there already; a broken file of that name is not it."""
    try:
        return bool(read_json(path) == json.loads(text))
    except UserError:
        return False


def _check_fields(path: Path, saved: Any, owner: type[Record] | type[Measured]) -> None:
    known = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(owner)}
    found = set(saved) if isinstance(saved, dict) else set()
    missing = [name for name, required in known.items() if required and name not in found]
    if missing:
        raise UserError(f"{path} is not a whole record of spat: it has no {missing[0]!r}.")
    foreign = sorted(found - set(known))
    if foreign:
        raise UserError(f"{path} is not a record of this spat: it has a {foreign[0]!r}.")
