"""The store only grows, and tells what is no record of its."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spat.errors import UserError
from spat.records import Measured, Record
from spat.results import load, load_all, save, write_json

RECORD = Record(
    settings={"lr": 0.1, "defence": "spat"},
    settings_hash="0123abcd",
    eps=0.3,
    norm="linf",
    measured=(Measured("clean", 0.5, 0.4, 0.6, 10), Measured("worst", 0.2, 0.1, 0.3, 10, 0.25)),
    seeds={"run": 7},
    weights_sha256="ff",
    commit="unknown",
    version="0.1.0",
    hardware={"cpu": "x", "cores": 2},
    seconds={"training": 1.5},
    doubts=("one",),
    attacks={"pgd-40": "PGD(steps=40)"},
)


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    path = save(RECORD, tmp_path / "results")
    assert path.name == "0123abcd-seed-7.json"
    assert load(path) == RECORD


def test_the_same_record_is_kept_once(tmp_path: Path) -> None:
    assert save(RECORD, tmp_path) == save(RECORD, tmp_path)
    assert load_all(tmp_path) == {tmp_path / "0123abcd-seed-7.json": RECORD}


def test_another_result_of_the_same_settings_becomes_a_sibling(tmp_path: Path) -> None:
    others = [replace(RECORD, seconds={"training": float(i)}) for i in range(3)]
    names = [save(each, tmp_path).name for each in (RECORD, *others, others[1])]
    siblings = [f"0123abcd-seed-7.{i}.json" for i in (2, 3, 4)]
    assert names == ["0123abcd-seed-7.json", *siblings, siblings[1]]
    assert list(load_all(tmp_path).values()).count(RECORD) == 1
    assert len(load_all(tmp_path)) == 4


def test_a_broken_file_in_its_place_is_neither_overwritten_nor_in_the_way(tmp_path: Path) -> None:
    place = tmp_path / "0123abcd-seed-7.json"
    place.write_text('{"schema": 1, "sett')
    assert load(save(RECORD, tmp_path)) == RECORD
    assert place.read_text() == '{"schema": 1, "sett'


def test_a_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = save(replace(RECORD, settings_hash="../../x", seeds={}), tmp_path)
    assert path.parent == tmp_path
    assert path.name == "______x-seed-none.json"


def altered(**changes: Any) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(json.dumps(RECORD.to_json()))
    return {key: value for key, value in {**saved, **changes}.items() if value != "absent"}


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ([1, 2], "is not a record of spat."),
        ({"name": "pyproject"}, "is not a record of spat."),
        (altered(schema=99), "has schema 99 and this spat reads 1"),
        (altered(seeds="absent"), "it has no 'seeds'"),
        (altered(colour="blue"), "it has a 'colour'"),
        (altered(measured=[{"attack": "clean"}]), "it has no 'value'"),
        (altered(measured=[3]), "it has no 'attack'"),
        (altered(measured=None), "'measured' and 'doubts' must be lists"),
    ],
)
def test_a_foreign_file_is_named_in_one_sentence(tmp_path: Path, saved: Any, said: str) -> None:
    write_json(tmp_path / "foreign.json", saved)
    with pytest.raises(UserError) as caught:
        load(tmp_path / "foreign.json")
    assert said in str(caught.value)
    assert "foreign.json" in str(caught.value)


def test_a_record_from_before_attacks_were_kept_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "old.json", altered(attacks="absent", doubts=[]))
    assert load(tmp_path / "old.json") == replace(RECORD, attacks={}, doubts=())


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        load_all(tmp_path / "nowhere")
