"""The file of events: a line each, whatever happens to the disk or to the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from spat.errors import UserError
from spat.records import Event
from spat.training.sinks import JsonLines, Tail, read_events

FULL = Path("/dev/full")  # every write to it fails for want of room


def numbers(path: Path) -> list[int]:
    return [event.values["step"] for event in read_events(path)]


def test_a_line_that_a_kill_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    JsonLines(path)(Event("step", {"step": 1}))
    with path.open("a") as file:
        file.write('{"kind": "step", "st')
    JsonLines(path)(Event("step", {"step": 2}))
    assert numbers(path) == [1, 2]


def test_a_tail_tells_what_is_new_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    early = Tail(path)
    assert early() == []  # nobody has written it yet
    JsonLines(path)(Event("step", {"step": 1}))
    late = Tail(path)
    JsonLines(path)(Event("step", {"step": 2}))
    with path.open("a") as file:
        file.write('{"kind": "step", "time": 0, ')
    assert [event.values["step"] for event in early()] == [1, 2]
    assert [event.values["step"] for event in late()] == [2]
    with path.open("a") as file:
        file.write('"step": 3}\n')
    assert [event.values["step"] for event in late()] == [3]
    assert late() == []


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_events_wait_for_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonLines(path)
    sink(Event("step", {"step": 1}))
    path.rename(tmp_path / "aside")
    path.symlink_to(FULL)
    sink(Event("step", {"step": 2}))
    sink(Event("step", {"step": 3}))
    path.unlink()
    (tmp_path / "aside").rename(path)
    sink(Event("step", {"step": 4}))
    assert numbers(path) == [1, 2, 3, 4]


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"could not write .*file/events\.jsonl: "):
        JsonLines(tmp_path / "file" / "events.jsonl")
