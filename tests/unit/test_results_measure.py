"""Numbers from outcomes that can be counted by hand, and where they come from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spat.errors import UserError
from spat.records import Attacked, Outcomes
from spat.results import measured, provenance, wilson
from spat.results.classwise import Confused, class_count, confusion, most_confused, predictions
from spat.results.measure import commit, processor


def outcomes(labels: list[int], clean: list[int], **attacks: list[int]) -> Outcomes:
    """Outcomes whose broken ones are those whose prediction under attack became wrong."""
    y, z, n = np.array(labels, np.int64), np.array(clean, np.int64), len(labels)
    rows = {name: np.array(found, np.int64) for name, found in attacks.items()}
    told = {
        name: Attacked(p, (z == y) & (p != y), np.zeros(n, np.float32), np.full(n, -1))
        for name, p in rows.items()
    }
    return Outcomes(np.arange(n), y, z, told, 8 / 255, "linf")


FIVE = outcomes([0, 0, 1, 1, 2], [0, 0, 1, 0, 2], a=[1, 0, 1, 0, 2], b=[2, 0, 2, 0, 2])


def test_measured_counts_clean_each_attack_and_the_pointwise_worst() -> None:
    rows = {row.attack: row for row in measured(FIVE)}
    assert list(rows) == ["clean", "a", "b", "worst"]
    assert [row.value for row in rows.values()] == [4 / 5, 3 / 5, 2 / 5, 2 / 5]
    assert all((row.low, row.high) == wilson(round(5 * row.value), 5) for row in rows.values())
    assert all(row.n == 5 and row.published is None for row in rows.values())


def test_without_an_attack_there_is_no_worst_case() -> None:
    assert [row.attack for row in measured(outcomes([0, 1], [0, 1]))] == ["clean"]


@pytest.mark.parametrize(("prediction", "value"), [(0, 0.0), (1, 1.0)])
def test_one_example_wrong_or_right(prediction: int, value: float) -> None:
    row = measured(outcomes([1], [1], a=[prediction]))[-1]
    assert (row.attack, row.value, row.n) == ("worst", value, 1)
    assert row.low <= value <= row.high


def test_no_example_is_told() -> None:
    with pytest.raises(UserError, match="no examples"):
        measured(outcomes([], []))


def test_predictions_under_attack_are_those_of_the_first_that_broke_each() -> None:
    assert predictions(FIVE, "clean").tolist() == [0, 0, 1, 0, 2]
    assert predictions(FIVE, "b").tolist() == [2, 0, 2, 0, 2]
    assert predictions(FIVE).tolist() == [1, 0, 2, 0, 2]
    assert ((predictions(FIVE) == FIVE.labels) == FIVE.worst).all()


def test_an_image_that_was_wrong_keeps_its_clean_prediction() -> None:
    wrong = Attacked(np.array([2]), np.array([True]), np.zeros(1, np.float32), np.array([-1]))
    found = Outcomes(np.array([0]), np.array([0]), np.array([1]), {"a": wrong}, 0.3, "linf")
    assert predictions(found).tolist() == [1]


def test_confusion_counts_labels_by_predictions() -> None:
    assert class_count(FIVE) == 3
    assert confusion(FIVE, 3).tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 1]]
    assert confusion(FIVE, 4, "clean").tolist()[3] == [0, 0, 0, 0]


def test_most_confused_are_the_largest_off_the_diagonal() -> None:
    counts = np.array([[9, 1, 4], [0, 5, 4], [7, 0, 0]])
    assert most_confused(counts, 3) == [
        Confused(2, 0, 7, 7),
        Confused(0, 2, 4, 14),
        Confused(1, 2, 4, 9),
    ]
    assert most_confused(np.eye(3, dtype=np.int64), 5) == []


def test_provenance_has_the_names_of_a_record() -> None:
    found = provenance("a GPU")
    assert set(found) == {"commit", "version", "hardware"}
    assert set(found["hardware"]) == {"processor", "cores", "python", "platform", "gpu"}
    assert all(found["hardware"].values())
    assert found["hardware"]["gpu"] == "a GPU"
    assert found["hardware"]["cores"] >= 1


def test_processor_is_the_first_model_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    assert processor(info) == "Some CPU @ 2 GHz"
    assert processor(tmp_path / "absent")


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *named, *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_a_repository_that_tracks_the_package(tmp_path: Path) -> None:
    package = tmp_path / "spat"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert commit(package) == "unknown"
    git(tmp_path, "init", "-q")
    assert commit(package) == "unknown"  # inside a repository that is not the package's own
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    assert commit(package) == git(tmp_path, "rev-parse", "HEAD").strip()
    (package / "__init__.py").write_text("changed = True")
    assert commit(package) == git(tmp_path, "rev-parse", "HEAD").strip() + "-dirty"


def test_without_git_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == "unknown"


def test_results_and_reporting_do_not_import_torch() -> None:
    code = "import sys, spat.results, spat.reporting; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
