"""The mistakes that `benchmarks/mutations.py` makes can still be made in the sources."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from mutations import TESTS, Mutant, mutants  # noqa: E402


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: f"{mutant.attack}: {mutant.name}")
def test_a_mistake_changes_one_file(mutant: Mutant, tmp_path: Path) -> None:
    path = tmp_path / "spat" / mutant.file
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "spat" / mutant.file, path)
    before = path.read_text()
    mutant.make(tmp_path)
    assert path.read_text() != before
    compile(path.read_text(), mutant.file, "exec")


def test_there_are_ten_for_each_attack() -> None:
    counts = Counter(mutant.attack for mutant in mutants())
    assert counts.keys() == TESTS.keys()
    assert min(counts.values()) >= 10
