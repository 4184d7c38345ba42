"""What a run leaves in its folder, when, and what it does when it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from spat.errors import UserError
from spat.records import Event
from spat.training import checkpoint
from spat.training.loop import Trainer
from toys import equal, states, trainer

FULL = Path("/dev/full")  # every write to it fails for want of room
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def stop_after(steps: int, subject: Trainer) -> list[Event]:
    left = iter(range(steps))
    return list(subject.run(stop=lambda: next(left, None) is None))


def saved(events: list[Event]) -> list[int]:
    return [event.values["step"] for event in events if event.kind == "checkpoint"]


def notes(events: list[Event]) -> list[str]:
    return [event.values["text"] for event in events if event.kind == "note"]


@pytest.mark.parametrize(
    ("every", "steps"),
    [("1step", [1, 2, 3, 4, 5, 6, 7, 8]), ("3steps", [3, 4, 7, 8]), ("1h", [4, 8])],
)
def test_saves_come_as_often_as_asked_and_with_each_epoch(
    tmp_path: Path, every: str, steps: list[int]
) -> None:
    """Four steps an epoch: each save begins the count anew."""
    assert saved(list(trainer(tmp_path, save_every=every).run())) == steps


def test_time_between_saves(tmp_path: Path) -> None:
    assert saved(list(trainer(tmp_path, save_every="0.001s").run())) == list(range(1, 9))


@needs_full
def test_a_save_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """The second save of the run meets a full disk."""
    subject = trainer(tmp_path, save_every="1step")
    events = []
    for event in subject.run():
        events.append(event)
        if event.kind == "checkpoint" and event.values["step"] == 1:
            (tmp_path / "last.safetensors.part").symlink_to(FULL)
    assert saved(events) == [1, 3, 4, 5, 6, 7, 8]
    assert notes(events) == [
        f"could not write {tmp_path}/last.safetensors: No space left on device; what was there "
        "before is intact. The run goes on, and tries again at its next save."
    ]


@needs_full
def test_the_save_at_the_end_has_to_succeed(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000000008.safetensors.part").symlink_to(FULL)
    with pytest.raises(UserError, match="No space left on device; what was there before"):
        list(trainer(tmp_path).run())
    assert checkpoint.newest(tmp_path).meta["step"] == 4


@needs_full
def test_the_save_of_a_run_that_is_stopped_has_to_succeed(tmp_path: Path) -> None:
    stop_after(2, trainer(tmp_path))
    (tmp_path / "last.safetensors.part").symlink_to(FULL)
    with pytest.raises(UserError, match="No space left on device; what was there before"):
        stop_after(1, resumed(tmp_path))
    assert checkpoint.newest(tmp_path).meta["step"] == 2


def resumed(folder: Path) -> Trainer:
    subject = trainer(folder)
    subject.resume()
    return subject


def test_a_damaged_newest_checkpoint_costs_an_interval(tmp_path: Path) -> None:
    """Going on from the one before is going on exactly; the damaged one is dropped, and told of."""
    whole = trainer()
    list(whole.run())
    stop_after(5, trainer(tmp_path, save_every="1step"))
    newest = checkpoint.paths(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    subject = resumed(tmp_path)
    assert subject.counters.step == 4
    events = list(subject.run())
    assert f"{newest} is not a whole safetensors file" in notes(events)[0]
    assert notes(events)[0].endswith(
        f"It goes on from {tmp_path}/checkpoint-000000004.safetensors instead."
    )
    assert equal(states(whole.model), states(subject.model))


def test_a_damaged_one_of_a_later_step_never_displaces_a_whole_one(tmp_path: Path) -> None:
    stop_after(6, trainer(tmp_path, save_every="1step"))
    (tmp_path / "checkpoint-000000007.safetensors").write_bytes(b"cut short")
    subject = resumed(tmp_path)
    subject.settings = trainer(save_every="1step").settings
    stop_after(0, subject)
    steps = [int(path.stem[-9:]) for path in checkpoint.paths(tmp_path)]
    assert steps == [5, 6]
    assert checkpoint.newest(tmp_path).problems == ()


def test_without_a_checkpoint_a_run_begins_again(tmp_path: Path) -> None:
    whole = trainer()
    list(whole.run())
    subject = resumed(tmp_path)
    events = list(subject.run())
    assert notes(events) == ["no checkpoint was finished before this run stopped: it begins again"]
    assert equal(states(whole.model), states(subject.model))


@pytest.mark.skipif(os.name != "posix", reason="limits as POSIX has them")
def test_a_file_too_large_leaves_what_was_there(tmp_path: Path) -> None:
    """The system itself refuses to write past a limit, in the middle of the file."""
    import resource

    stop_after(2, trainer(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    subject = resumed(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match="File too large; what was there before is intact"):
            stop_after(1, subject)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_weights_that_are_no_numbers_displace_no_checkpoint(tmp_path: Path) -> None:
    """A finite loss can have an infinite gradient; the next step's loss is then refused."""
    subject = trainer(tmp_path, save_every="1step")
    events: list[Event] = []

    def run() -> None:
        for event in subject.run():
            events.append(event)
            if event.kind == "checkpoint" and event.values["step"] == 2:
                subject.model.out.bias.data[0] = torch.inf

    with pytest.raises(UserError, match=r"NaN or infinite logits at step 2 \(epoch 1\); the"):
        run()
    assert checkpoint.newest(tmp_path).meta["step"] == 2
    subject.counters.step = 3
    assert notes([subject.saver.try_to_save(subject.state)]) == [  # type: ignore[union-attr]
        "step 3 made weights that are no numbers: they were not saved. "
        "The run goes on, and tries again at its next save."
    ]
    assert checkpoint.newest(tmp_path).meta["step"] == 2
