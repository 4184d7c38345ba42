"""A stopped evaluation goes on where it was, ends as if never stopped, and only as itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_evaluation_engine import EPS, blobs, trained
from torch import Tensor, nn

import spat
from spat import tensorfile
from spat.evaluation import _progress
from spat.evaluation._store import opened
from spat.folder import locked
from spat.interval import Interval
from spat.records import Event, Outcomes

Data = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained()


@pytest.fixture(scope="module")
def convolutional() -> nn.Module:
    """Its copy lies channels-last, and so do gradients and iterates."""
    x, y = blobs(200, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
            nn.Linear(288, 5),
        )  # fmt: skip
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


@pytest.fixture(scope="module")
def data() -> Data:
    return blobs(30, 1)


@pytest.fixture(autouse=True)
def every_pause_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "EVERY", 0.0)


class StopError(Exception):
    pass


def stopping(after: int) -> Callable[[Event], None]:
    """A sink that ends an evaluation at so manieth an event of an attack."""
    seen = 0

    def sink(event: Event) -> None:
        nonlocal seen
        seen += event.kind == "attack"
        if seen == after:
            raise StopError

    return sink


def text(outcomes: Outcomes) -> str:
    return json.dumps(outcomes.to_json())


def interrupted(every: int, state: Path, evaluate: Callable[..., Outcomes]) -> tuple[Outcomes, int]:
    """Stopped again and again after so many pauses; the outcomes, and how often."""
    for count in range(10_000):
        try:
            return evaluate(state=state, sink=stopping(every + count % 3)), count
        except StopError:
            continue
    raise AssertionError("it never ends")


CASES: dict[str, dict[str, Any]] = {
    "pgd-3 mim-3": {"batch_size": 4},
    "apgd-t-4 md-4": {"batch_size": 16},
    "fab-t-4": {"batch_size": 16},
    "square-300 fgsm": {"batch_size": 16},
    "aa-40": {},
    "aa-20": {"exact": True, "batch_size": 16},
    "apgd-ce-4 cw-3": {"exact": True, "batch_size": 8},
    "apgd-t-3 square-50": {"within": "17pp", "batch_size": 4},
}


EVERY = {"aa-40": 20, "aa-20": 70, "square-300 fgsm": 1}  # pauses between two stops


BOTH = [name for name in CASES if name != "aa-20"]  # of which the twin would take long


@pytest.mark.parametrize(
    ("attacks", "net"),
    [
        pytest.param(attacks, net, marks=pytest.mark.slow if "aa" in attacks else ())
        for net, names in (("model", CASES), ("convolutional", BOTH))
        for attacks in names
    ],
)
def test_stopped_anywhere_it_ends_the_same(
    attacks: str, net: str, data: Data, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    subject, settings = request.getfixturevalue(net), CASES[attacks]
    x, y = blobs(60, 1) if "within" in settings else data

    def evaluate(**more: Any) -> Outcomes:
        return spat.evaluate(subject, x, y, attacks, eps=EPS, **settings, **more)

    whole = evaluate()
    found, stops = interrupted(EVERY.get(attacks, 9), tmp_path / "state", evaluate)
    assert stops > 1
    assert text(found) == text(whole)
    if "within" in settings:
        assert 16 < len(found) < 60


def test_lanes_of_several_threads_go_on_too(
    convolutional: nn.Module, tmp_path: Path, two_threads: None
) -> None:
    x, y = blobs(60, 1)

    def evaluate(**more: Any) -> Outcomes:
        return spat.evaluate(convolutional, x, y, "apgd-t-4 square-200", eps=EPS, **more)

    found, stops = interrupted(6, tmp_path / "state", evaluate)
    assert stops > 1
    assert text(found) == text(evaluate())


ATTACKS = "pgd-3 square-100"
Kept = dict[str, tuple[Tensor, ...]]


def run(model: nn.Module, data: Data, attacks: str = ATTACKS, **more: Any) -> Outcomes:
    return spat.evaluate(model, *data, attacks, **{"eps": EPS, "batch_size": 16, **more})


@pytest.fixture
def state(model: nn.Module, data: Data, tmp_path: Path) -> Path:
    """Of an evaluation that was stopped in its second attack."""
    with pytest.raises(StopError):
        run(model, data, state=tmp_path / "state", save_every="1step", sink=stopping(5))
    assert len(list((tmp_path / "state").iterdir())) == 3  # one attack over, two states of another
    return tmp_path / "state"


def collector(kept: Kept) -> Callable[..., None]:
    def keep(label: str, *values: Tensor) -> None:
        assert label not in kept
        kept[label] = tuple(value.clone() for value in values)

    return keep


def test_images_found_before_a_stop_are_handed_over_too(
    model: nn.Module, data: Data, state: Path
) -> None:
    whole, kept = Kept(), Kept()
    run(model, data, keep=collector(whole))
    run(model, data, keep=collector(kept), state=state)
    assert list(kept) == list(whole) == ATTACKS.split()
    for label, values in whole.items():
        assert all(torch.equal(a, b) for a, b in zip(values, kept[label], strict=True))


def test_work_is_counted_once(model: nn.Module, data: Data, state: Path) -> None:
    def work(**more: Any) -> dict[str, tuple[int, int]]:
        last: dict[str, tuple[int, int]] = {}

        def sink(event: Event) -> None:
            if event.kind == "attack":
                v = event.values
                last[v["attack"]] = (v["forwards"], v["backwards"])

        run(model, data, sink=sink, **more)
        return last

    assert work(state=state) == work()


def test_a_finished_evaluation_attacks_nothing_again(
    model: nn.Module, data: Data, tmp_path: Path
) -> None:
    first = run(model, data, state=tmp_path / "new" / "state")
    net = Forwards(model)
    again = run(net.eval(), data, state=tmp_path / "new" / "state")
    assert text(replace(again, notes=())) == text(replace(first, notes=()))
    assert net.count <= 1 + -(-len(data[0]) // 16)  # clean logits, and a look at the copy


class Forwards(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = [model]  # in a list: weights are those of no module
        self.count = 0

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return self.inner[0].state_dict(*args, **more)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        z: Tensor = self.inner[0](x)
        return z


def changed(model: nn.Module) -> nn.Module:
    other = trained()
    with torch.no_grad():
        other.get_parameter("3.bias")[0] += 1e-3
    return other


class Negative(Forwards):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": changed}, "of a model with other weights: go on with that one, or remove"),
        ({"model": Negative}, "the state is of another model: it has the same weights, and says"),
        ({"x": lambda x: x * 0.5}, "of other images:"),
        ({"y": lambda y: y.flip(0)}, "of other labels:"),
        ({"ids": torch.arange(1, 31)}, "of images of other numbers:"),
        ({"attacks": "pgd-3"}, "of attacks pgd-3 square-100, not pgd-3:"),
        ({"attacks": "square-100 pgd-3"}, "of attacks pgd-3 square-100, not square-100 pgd-3:"),
        ({"eps": 0.1}, "of eps 0.17, not 0.1:"),
        ({"norm": "l2"}, "of norm linf, not l2:"),
        ({"seed": 1}, "of seed 0, not 1:"),
        ({"exact": True}, "of exact False, not True:"),
        ({"within": "5pp"}, "of waves none, not of 16:"),
    ],
)
def test_another_evaluation_is_refused(
    change: dict[str, Any], says: str, model: nn.Module, data: Data, state: Path
) -> None:
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    parts: dict[str, Any] = {"model": model, "x": data[0], "y": data[1]}
    for name in parts.keys() & change.keys():
        parts[name] = change[name](parts[name])
    more = {name: value for name, value in change.items() if name not in parts}
    with pytest.raises(spat.UserError) as error:
        run(parts["model"], (parts["x"], parts["y"]), state=state, **more)
    assert says in str(error.value)
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before


def test_another_scale_of_the_logits_is_named(data: Data, tmp_path: Path) -> None:
    """The labels of the attacks are the same; their settings are not."""
    net = trained()
    run(net, data, "fgsm", scale=2.0, state=tmp_path)
    with pytest.raises(spat.UserError, match=r"attacks fgsm scale 1 fgsm scale 2, not fgsm scale"):
        run(net, data, "fgsm", scale=3.0, state=tmp_path)


def test_the_batch_size_matters_where_verdicts_depend_on_it(
    model: nn.Module, data: Data, state: Path, tmp_path: Path
) -> None:
    assert text(run(model, data, state=state, batch_size=7)).count("square")
    run(model, data, "aa-5", exact=True, state=tmp_path / "exact")
    with pytest.raises(spat.UserError, match="of batch size 16, not 7:"):
        run(model, data, "aa-5", exact=True, batch_size=7, state=tmp_path / "exact")


def damaged(path: Path, how: str) -> None:
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    path.write_bytes({"cut": whole[:middle], "flipped": flipped, "empty": b""}[how])


@pytest.mark.parametrize("how", ["cut", "flipped", "empty"])
@pytest.mark.parametrize(
    ("files", "says"),
    [
        (slice(-1, None), "The attack goes on from the state before it."),
        (slice(-2, None), "The attack is begun again."),
        (slice(None), "The attack is begun again."),
    ],
)
def test_a_damaged_state_gives_way_to_the_one_before(
    how: str, files: slice, says: str, model: nn.Module, data: Data, state: Path
) -> None:
    hurt = sorted(state.iterdir())[files]
    for path in hurt:
        damaged(path, how)
    said: list[str] = []

    def sink(event: Event) -> None:
        if event.kind == "note":
            said.append(event.values["text"])

    outcomes = run(model, data, state=state, sink=sink)
    assert text(outcomes) == text(run(model, data))
    for path in hurt:
        told = [note for note in said if path.name in note]
        assert len(told) == 1
        assert "was altered" in told[0] or "not a whole safetensors file" in told[0]
        assert told[0].endswith(says)


def test_tensors_lie_in_memory_as_they_did(tmp_path: Path) -> None:
    """Sums over them round by the order of their terms."""
    rows = torch.rand(4, 3, 5, 5)
    given = {
        "plain": rows,
        "last": rows.contiguous(memory_format=torch.channels_last),
        "turned": rows.transpose(0, 1),
        "one": rows[:1, :1].contiguous(memory_format=torch.channels_last),
        "none": rows[:0],
    }
    with opened(tmp_path, dict, Interval(), print) as store:
        store.save((0, 0), given, {}, is_over=False)
        saved = store.find((0, 0))
    assert saved is not None
    for name, tensor in given.items():
        assert torch.equal(saved.tensors[name], tensor)
        assert saved.tensors[name].stride() == tensor.stride(), name


def test_one_process_a_state(model: nn.Module, data: Data, tmp_path: Path) -> None:
    tmp_path.joinpath("s").mkdir()
    with locked(tmp_path / "s"), pytest.raises(spat.UserError, match="is in use by process"):
        run(model, data, state=tmp_path / "s")


def test_a_state_that_cannot_be_written_is_told_at_once(
    model: nn.Module, data: Data, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(spat.UserError, match="could not make the folder .*file/state"):
        run(model, data, state=tmp_path / "file" / "state")


def test_a_model_that_answers_at_random_goes_on(data: Data, tmp_path: Path) -> None:
    class Noisy(Forwards):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 5 * torch.rand(len(x), 5)

    net = Noisy(trained())
    with torch.random.fork_rng():
        first = run(net, data, "fgsm", state=tmp_path)
        torch.rand(3)
        again = run(net, data, "fgsm", state=tmp_path)
    assert text(replace(again, notes=())) == text(replace(first, notes=()))


def test_a_save_that_fails_ends_nothing(
    model: nn.Module, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls, said = tensorfile.write, 0, []

    def full(path: Path, *more: Any) -> str:
        nonlocal calls
        calls += 1
        if calls in (1, 2):
            raise spat.UserError(f"could not write {path}: No space left on device.")
        return write(path, *more)

    monkeypatch.setattr(tensorfile, "write", full)

    def sink(event: Event) -> None:
        if event.kind == "note" and "No space" in event.values["text"]:
            said.append(event.values["text"])

    outcomes = run(model, data, state=tmp_path / "s", save_every="1step", sink=sink)
    assert text(outcomes) == text(run(model, data))
    assert len(said) == 2
    assert said[0].endswith("device. The evaluation goes on, and tries again at its next save.")
    assert len(list((tmp_path / "s").glob("*-over.safetensors"))) == 2


def test_a_model_whose_state_is_not_tensors_alone(
    model: nn.Module, data: Data, tmp_path: Path
) -> None:
    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def get_extra_state(self) -> Any:
            return {"any": "thing"}

        def set_extra_state(self, state: Any) -> None: ...

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.inner(x)
            return z

    first = run(Extra().eval(), data, "fgsm", state=tmp_path)
    assert text(run(Extra().eval(), data, "fgsm", state=tmp_path)) == text(first)
