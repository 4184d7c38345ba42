"""Two processes train as one would: the same losses, weights and statistics, on disjoint shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import processes
from processes import CASES, DOUBLE, curve, dazzled, ended, launch, trainer
from spat.errors import UserError
from spat.world import World

WORKER = str(Path(processes.__file__))
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    for code, _, errors in ended(launch(folder, [WORKER, str(folder)]), 120):
        assert code == 0, errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", [case for case in CASES if case != "unsynced"])
def test_two_processes_have_the_loss_curve_of_one(case: str, two: Found) -> None:
    """Catches: a mean over the share only (batches of 13 are shared as 7 and 6), BatchNorm of the
    share, masks or noise that differ, AWP's direction or GAIRAT's weights from half of the batch,
    the other's rows of Free's perturbation.
    """
    one, tolerance = curve(case), 1e-9 if case in DOUBLE else 1e-4
    assert two[0][case]["losses"] == pytest.approx(one["losses"], abs=tolerance)
    assert two[0][case]["held"] == one["held"]
    for name, value in one["state"].items():
        assert torch.allclose(two[0][case]["state"][name], value, atol=tolerance), name


@pytest.mark.parametrize("case", CASES)
def test_both_processes_end_with_the_same_bits(case: str, two: Found) -> None:
    """Also where BatchNorm sees shares: its running statistics are averaged."""
    one, other = (found[case]["state"] for found in two)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_statistics_of_shares_are_another_run(two: Found) -> None:
    assert two[0]["unsynced"]["losses"] != pytest.approx(two[0]["madry"]["losses"], abs=1e-3)


def test_what_one_process_meets_all_of_them_act_on(two: Found) -> None:
    """An image that only one of them attacks has no logits: both go back, three times, and end."""
    notes, end = dazzled()
    assert len(notes) == 3
    assert "NaN or infinite logits" in end
    assert [found["dazzled"] for found in two] == [(notes, end)] * 2


def test_shares_are_disjoint_and_complete(two: Found) -> None:
    seen = []
    for (mine, n), (theirs, _) in zip(two[0]["shares"], two[1]["shares"], strict=True):
        assert not set(mine) & set(theirs)
        assert len(mine) + len(theirs) == n
        assert abs(len(mine) - len(theirs)) <= 1
        seen += mine + theirs
    assert sorted(seen) == list(range(50))


def test_more_processes_than_images_of_a_batch() -> None:
    with pytest.raises(UserError, match="20 processes cannot share a batch of 12 images: raise"):
        trainer("madry", World(0, 20))
