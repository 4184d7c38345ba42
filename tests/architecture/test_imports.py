"""Arrows point one way: a file imports only from a lower level, or from its own folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "spat"
LEVELS = [
    {
        "errors",
        "convert",
        "catalog",
        "config",
        "findings",
        "interval",
        "launcher",
        "limits",
        "phases",
        "records",
        "rng",
        "statistics",
    },
    {"contracts", "threat", "losses", "modes", "folder", "tensorfile", "world"},
    {"fast"},
    {"datasets", "models", "attacks"},
    {"defences"},
    {"training", "evaluation", "results"},
    {"doubts"},
    {"reporting"},
    {"resolve", "cards"},
    {"assessment", "forecast"},
    {"experiment"},
    {"recipes", "loading", "api", "sweep"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))
# `spat` itself is the front door: it names the homes of the public names and imports them lazily.
CHECKED = [path for path in FILES if path != SOURCE / "__init__.py"]


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, top-level module) of every import of spat's own, wherever in the file it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "spat":
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spat."):
            found.append((node.lineno, str(node.module).split(".")[1]))
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            found += [(node.lineno, name[1]) for name in names if name[0] == "spat" and name[1:]]
    return found


def violations(path: Path) -> list[str]:
    own, wrong = room(path), []
    for line, other in imports(path):
        inside_level_0 = LEVEL[own] == 0 and LEVEL[other] == 0  # plain values may know each other
        if other != own and not inside_level_0 and LEVEL[other] >= LEVEL[own]:
            direction = "a sibling" if LEVEL[other] == LEVEL[own] else "upwards"
            wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {other}: {direction}")
    return wrong


@pytest.mark.parametrize("path", CHECKED, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    assert violations(path) == []


def test_every_room_has_a_level() -> None:
    assert {room(path) for path in CHECKED} - LEVEL.keys() == set()


def test_a_violation_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "attacks" / "bad.py"
    planted.parent.mkdir()
    planted.write_text(
        "def f():\n    from spat.training import loop\n    from spat.models import a\n"
    )
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    assert violations(planted) == [
        "attacks/bad.py:2 imports training: upwards",
        "attacks/bad.py:3 imports models: a sibling",
    ]


def test_reporting_does_without_torch() -> None:
    for path in (SOURCE / "reporting").rglob("*.py"):
        text = path.read_text()
        assert "import torch" not in text, path
        assert "from torch" not in text, path
