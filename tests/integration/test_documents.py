"""What the documents say is true: the README's example runs, generated pages are up to date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from spat import catalog
from spat.cli.main import main, verbs
from spat.recipes.demo import demo
from spat.resolve import resolve
from spat.results import load_all

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(generator().PAGES))
def test_generated_pages_are_up_to_date(page: str) -> None:
    written = (ROOT / "docs" / page).read_text()
    assert written == generator().PAGES[page](), "run `make docs`"


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """As printed, on fewer images."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    exec(code.replace("2000", "300").replace("200]", "20]"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("clean, eps 0.3, n 20: ")
    assert lines[-1].startswith("worst, eps 0.3, n 20: ")
    assert len(lines) == 7


def test_the_printed_table_is_that_of_a_committed_record() -> None:
    (record,) = load_all(ROOT / "results" / "demo").values()
    for row in record.measured:
        label = "worst case" if row.attack == "worst" else row.attack
        numbers = [f"{100 * part:.2f}" for part in (row.value, row.low, row.high)]
        line = rf"^{label} +{numbers[0]}  {numbers[1]} . {numbers[2]}  {row.n}"
        assert re.search(line, README, re.MULTILINE), label
    now = resolve(demo()).flat
    assert {key: now.get(key) for key in record.settings} == record.settings, "run the demo again"


def test_the_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    used = set(re.findall(r"\$ spat (\w+)", README))
    assert used | {"demo"} == set(verbs())  # which `make demo` runs
    assert main(["list", "recipe"]) == 0
    listed = capsys.readouterr().out
    for recipe in re.findall(r"--recipe ([\w-]+)", README):
        assert recipe in listed


def test_every_defence_beats_no_defence_by_a_wide_margin() -> None:
    """Each seed of each, under PGD-40, the weaker of a cosine head's two scales."""
    weakest: dict[str, list[float]] = {}
    for record in load_all(ROOT / "results" / "short-comparison").values():
        found = [m.value for m in record.measured if m.attack.startswith("pgd-40")]
        weakest.setdefault(str(record.settings["defence"]), []).append(min(found))
    undefended = max(weakest.pop("natural"))
    compared = " ".join(sorted({catalog.stem("defence", name) for name in weakest}))
    assert compared == "alp awp fgsm-rs free gairat madry mail mart n-fgsm seat spat trades"
    for name, values in weakest.items():
        assert len(values) >= 3, name
        assert min(values) > undefended + 0.4, name


def test_the_tree_names_every_room() -> None:
    tree = README.partition("## The tree")[2].partition("How it fits")[0]
    for path in (ROOT / "src" / "spat").iterdir():
        if path.is_dir() and path.name != "__pycache__":
            assert f"{path.name}/" in tree, path.name
        elif path.suffix == ".py" and not path.name.startswith("__"):
            assert path.name in tree, path.name


def test_documents_name_no_file_that_is_not_there() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
