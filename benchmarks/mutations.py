"""Claim: the tests notice at least nine of ten harmful mistakes in each attack.

Makes the mistakes of `mutants.toml` one at a time in a copy of the sources, runs the tests of that
attack on the copy, and says which test noticed. A mistake that none noticed asks for a new test.
Run: python benchmarks/mutations.py [pgd apgd ...]     about five minutes on two cores
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BAR = 0.9
PATIENCE_S = 300.0  # a mistake may keep an attack from ending; a test that hangs is noticed
CONTRACT = "tests/contract/test_attacks_contract.py"
PARITY = "tests/reference/test_autoattack_parity.py"
PROJECTIONS = "tests/property/test_projections.py"

# The tests of each attack, the quick ones first; the shared files only as far as they are about it.
TESTS: dict[str, list[list[str]]] = {
    "pgd": [
        ["tests/unit/test_pgd.py", PROJECTIONS],
        ["tests/unit/test_blocks.py"],
        [CONTRACT, "-k", "(pgd or fgsm) and not apgd"],
    ],
    "apgd": [["tests/unit/test_apgd.py", PROJECTIONS], [CONTRACT, PARITY, "-k", "apgd"]],
    "square": [["tests/unit/test_square.py"], [CONTRACT, PARITY, "-k", "square"]],
    "fab": [["tests/unit/test_fab.py", PROJECTIONS], [CONTRACT, PARITY, "-k", "fab"]],
    "mim": [["tests/unit/test_mim_md.py"], [CONTRACT, "-k", "mim"]],
    "cw": [["tests/unit/test_pgd.py", "tests/unit/test_cw.py"], [CONTRACT, "-k", "cw"]],
}


@dataclass(frozen=True)
class Mutant:
    """One mistake: texts to replace in a file below src/spat."""

    attack: str
    name: str
    file: str
    edits: list[list[str]]

    def make(self, source: Path) -> None:
        """Edit the sources, or say that they have changed under this mutant."""
        path = source / "spat" / self.file
        text = path.read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.attack}: {self.name}: {self.file} has no single {old!r}.")
            text = text.replace(old, new)
        path.write_text(text)


def mutants(attacks: Sequence[str] = ()) -> list[Mutant]:
    listed: dict[str, list[dict[str, Any]]] = tomllib.loads(
        (ROOT / "benchmarks" / "mutants.toml").read_text()
    )
    return [
        Mutant(a, **given)
        for a, all_of in listed.items()
        if a in (attacks or listed)
        for given in all_of
    ]


def snapshot(folder: Path) -> Path:
    """What the tests need, as it is now: the checkout may go on changing."""
    for part in ("src", "tests"):
        leave = shutil.ignore_patterns("__pycache__", "data")
        shutil.copytree(ROOT / part, folder / part, ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def noticed(attack: str, mutant: Mutant | None, sources: Path) -> str:
    """The test that fails first on a copy with this mistake; empty if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(sources, Path(folder), dirs_exist_ok=True)
        if mutant is not None:
            mutant.make(copy / "src")
        failed = ""
        for chosen in TESTS[attack]:
            failed = failed or first_failure(copy, chosen)
    if mutant is not None:
        print(f"{attack:7} {'noticed' if failed else 'MISSED':8} {mutant.name}", flush=True)
    return failed


def first_failure(copy: Path, chosen: list[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
    # Fixed seed, so that the answer is the same every time.
    command += ["--hypothesis-seed=0", "--tb=no", "-rfE", *chosen]
    given = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            command, cwd=copy, env=given, capture_output=True, text=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return "a test that does not end"
    if ended.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) \S*/(\S+)", ended.stdout, re.MULTILINE)
    if ended.returncode != 1 or failed is None:
        raise RuntimeError(f"the tests did not run:\n{ended.stdout}{ended.stderr}")
    return failed[1]


def report(judged: list[tuple[Mutant, str]]) -> bool:
    """Print what noticed each mistake, attack by attack; whether all reach the bar."""
    reached = True
    for attack in dict.fromkeys(mutant.attack for mutant, _ in judged):
        rows = [(mutant.name, test) for mutant, test in judged if mutant.attack == attack]
        caught = sum(bool(test) for _, test in rows)
        enough = caught >= BAR * len(rows)
        reached &= enough
        print(f"\n{attack}: {caught} of {len(rows)} noticed, {'at' if enough else 'BELOW'} the bar")
        for name, test in rows:
            print(f"  {name}\n    {test or 'MISSED'}")
    return reached


def judge(chosen: list[Mutant], jobs: int, sources: Path) -> list[str]:
    """What noticed each; before that, that the tests pass where there is no mistake."""
    attacks = list(dict.fromkeys(mutant.attack for mutant in chosen))
    with ThreadPoolExecutor(jobs) as pool:
        for failed in pool.map(lambda attack: noticed(attack, None, sources), attacks):
            if failed:
                raise SystemExit(f"{failed} fails without any mistake.")
        return list(pool.map(lambda one: noticed(one.attack, one, sources), chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("attacks", nargs="*", help=f"of {', '.join(TESTS)}; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="copies tested at the same time")
    given = parser.parse_args()
    if unknown := set(given.attacks) - TESTS.keys():
        parser.error(f"no mistakes are listed for {', '.join(sorted(unknown))}.")
    chosen = mutants(given.attacks)
    with tempfile.TemporaryDirectory() as folder:
        tests = judge(chosen, given.jobs, snapshot(Path(folder)))
    sys.exit(0 if report(list(zip(chosen, tests, strict=True))) else 1)


if __name__ == "__main__":
    main()
