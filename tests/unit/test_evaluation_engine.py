"""The engine: what shares a batch changes nothing, and only what the model confirms counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spat
from spat.attacks._search import Search
from spat.attacks._standard import run_exact, standard
from spat.evaluation import _subject, attack_by_name, plan_attacks
from spat.evaluation._room import automatic
from spat.records import Attacked, Event, Outcomes
from spat.rng import PerExample, derive

EPS = 0.17  # breaks about half of the blobs
SEARCHES = ("apgd-ce-8", "apgd-t-8", "fab-t-8", "md-8", "square-300")
OTHERS = ("fgsm", "pgd-5", "mim-5", "cw-5")
AA = "aa-60"
Data = tuple[Tensor, Tensor]


def blobs(n: int, seed: int, classes: int = 5) -> Data:
    rng = torch.Generator().manual_seed(seed)
    centres = torch.rand(classes, 1, 6, 6, generator=torch.Generator().manual_seed(9))
    y = torch.randint(0, classes, (n,), generator=rng)
    return (centres[y] + 0.15 * torch.randn(n, 1, 6, 6, generator=rng)).clamp(0, 1), y


def trained(classes: int = 5) -> nn.Module:
    x, y = blobs(300, 0, classes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, classes))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained()


@pytest.fixture(scope="module")
def data() -> Data:
    return blobs(40, 1)


def same_rows(a: Attacked, b: Attacked) -> None:
    """Distances may differ in the last bit: a model's sums depend on the shape of its batch."""
    assert np.array_equal(a.predicted, b.predicted)
    assert np.array_equal(a.broken, b.broken)
    assert np.array_equal(a.step, b.step)
    assert np.array_equal(a.stage, b.stage)
    assert np.allclose(a.distance, b.distance, atol=1e-6)


@pytest.mark.parametrize("name", [*SEARCHES, *OTHERS])
def test_the_batch_size_decides_nothing(name: str, model: nn.Module, data: Data) -> None:
    whole = spat.evaluate(model, *data, name, eps=EPS, batch_size=64)
    assert 0 < whole.accuracy(name) < whole.accuracy()
    for size in (7, 1) if name in OTHERS else (7,):
        parts = spat.evaluate(model, *data, name, eps=EPS, batch_size=size)
        same_rows(whole.attacks[name], parts.attacks[name])


def test_part_of_a_data_set_gets_the_same_rows(model: nn.Module, data: Data) -> None:
    x, y = data
    whole = spat.evaluate(model, x, y, "pgd-5 square-300", eps=EPS)
    parts = []
    for at in (torch.arange(1, 40, 2), torch.arange(0, 40, 2)):
        parts.append(spat.evaluate(model, x[at], y[at], "pgd-5 square-300", eps=EPS, ids=at))
    merged = Outcomes.merge(parts)
    assert merged.to_json() == whole.to_json()


@pytest.mark.parametrize("name", SEARCHES)
def test_the_queue_finds_what_a_plain_search_finds(name: str, model: nn.Module, data: Data) -> None:
    """Round by round over the examples that are left: the attack's own loop is the slow twin."""
    x, y = data
    attack = attack_by_name(name, eps=EPS)
    assert isinstance(attack, Search)
    source = PerExample(derive(0, name), torch.arange(40))
    found = attack.search(model, attack.batch(model, x, y, source))
    column = spat.evaluate(model, x, y, name, eps=EPS, exact=True, batch_size=9).attacks[name]
    right = model(x).argmax(1) == y
    assert np.array_equal(column.broken, (found.broken & right).numpy())
    assert np.array_equal(column.step[column.broken], found.step[found.broken & right].numpy())
    distance = (found.x_adv - x).abs().flatten(1).amax(1)
    assert np.allclose(column.distance[right], distance[right], atol=1e-6)


def test_fast_and_exact_agree(model: nn.Module, data: Data) -> None:
    fast = spat.evaluate(model, *data, AA, eps=EPS)
    exact = spat.evaluate(model, *data, AA, eps=EPS, exact=True)
    assert 0.2 < exact.accuracy(AA) < 0.8
    assert int((fast.robust(AA) != exact.robust(AA)).sum()) <= 1


def test_exact_gives_the_official_verdicts(model: nn.Module, data: Data) -> None:
    x, y = data
    outcomes = spat.evaluate(model, x, y, AA, eps=EPS, exact=True, batch_size=16, seed=3)
    attacks = standard(eps=EPS, queries=60)
    verdict = run_exact(attacks, model, x, y, batch_size=16, seed=3)
    assert np.array_equal(outcomes.robust(AA), verdict.robust.numpy())
    found = outcomes.attacks[AA]
    assert found.stages == ("apgd-ce", "apgd-t", "fab-t", "square")
    broken = torch.from_numpy(found.broken)
    assert torch.equal(torch.from_numpy(found.stage)[broken] + 1, verdict.broken_by[broken])
    assert torch.equal(torch.from_numpy(found.step)[broken], verdict.step[broken])


def test_each_stage_is_told(model: nn.Module, data: Data) -> None:
    """By hand: one attack after the other, each on what the last one left."""
    x, y = data
    outcomes = spat.evaluate(model, x, y, f"{AA} fgsm", eps=EPS, exact=True)
    held = outcomes.correct
    for k, stage in enumerate(outcomes.attacks[AA].stages):
        held = held & ~(outcomes.attacks[AA].stage == k)
        assert outcomes.accuracy(f"{AA}: {stage}") == held.mean()
    assert held.mean() == outcomes.accuracy(AA)
    first = (outcomes.attacks[AA].stage == 0).sum()
    assert outcomes.broken_by.count(f"{AA}: apgd-ce") == first > 0
    assert outcomes.broken_by.count("clean") == (~outcomes.correct).sum()
    assert np.array_equal(np.array(outcomes.broken_by) == "", outcomes.worst)
    again = Outcomes.from_json(outcomes.to_json())
    assert again.to_json() == outcomes.to_json()


class Liar(nn.Module):
    """A copy that takes every image but a clean one for the class after its label."""

    separable = True
    notes = ("a liar",)

    def __init__(self, model: nn.Module, clean: Tensor) -> None:
        super().__init__()
        self.model, self.clean = model, clean

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.model(z)
        return logits.roll(1, 1)


@pytest.mark.parametrize("name", [*SEARCHES, "pgd-5", "fgsm", AA])
def test_what_the_model_refutes_is_never_counted(
    name: str, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every claim of this copy is false where the budget is tiny."""
    monkeypatch.setattr(_subject, "surrogate", lambda m, example: Liar(m, data[0]))
    outcomes = spat.evaluate(model, *data, name, eps=1e-6)
    assert not outcomes.attacks[name].broken.any()
    assert outcomes.accuracy(name) == outcomes.accuracy()


@pytest.mark.parametrize("name", ["apgd-ce-8", "apgd-t-8", "md-8", "square-300", "pgd-5", AA])
def test_where_the_copy_is_refuted_the_model_is_attacked(
    name: str, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy whose every claim is refuted costs time, but no strength."""
    monkeypatch.setattr(_subject, "surrogate", lambda m, example: Liar(m, data[0]))
    misled = spat.evaluate(model, *data, name, eps=EPS)
    monkeypatch.undo()
    plain = spat.evaluate(model, *data, name, eps=EPS)
    more = misled.robust(name).astype(int) - plain.robust(name)
    assert more.sum() <= 1


def test_breaks_are_those_of_the_stored_images(model: nn.Module, data: Data) -> None:
    x, y = data
    stored: dict[str, Tensor] = {}

    def keep(label: str, index: Tensor, x_adv: Tensor, predicted: Tensor) -> None:
        stored[label] = x.clone()
        stored[label][index] = x_adv
        assert torch.equal(model(x_adv).argmax(1), predicted)

    names = "pgd-5 square-300 fab-t-8"
    outcomes = spat.evaluate(model, x, y, names, eps=EPS, keep=keep)
    for name in names.split():
        assert float((stored[name] - x).abs().max()) <= np.float32(EPS) + 1e-7
        wrong = model(stored[name]).argmax(1) != y
        assert np.array_equal(outcomes.robust(name), ~wrong.numpy())


class Scarce(nn.Module):
    """A device with memory for so many images."""

    def __init__(self, model: nn.Module, most: int) -> None:
        super().__init__()
        self.model, self.most, self.largest = model, most, 0

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        self.largest = max(self.largest, len(x))
        z: Tensor = self.model(x)
        return z


@pytest.mark.parametrize("name", ["apgd-t-8", "square-300", "pgd-5"])
def test_where_memory_ends_batches_halve(name: str, model: nn.Module, data: Data) -> None:
    enough = spat.evaluate(model, *data, name, eps=EPS, exact=True, batch_size=40)
    scarce = Scarce(model, 10)
    found = spat.evaluate(scarce, *data, name, eps=EPS, exact=True, batch_size=40)
    same_rows(enough.attacks[name], found.attacks[name])
    assert scarce.largest == 10


def test_memory_for_no_image(model: nn.Module, data: Data) -> None:
    with pytest.raises(spat.UserError, match="not enough memory for even one image"):
        spat.evaluate(Scarce(model, 0), *data, "fgsm", eps=EPS)


def test_exact_verdicts_never_change_their_batch(model: nn.Module, data: Data) -> None:
    class Later(Scarce):
        def forward(self, x: Tensor) -> Tensor:
            self.most = 8 if x.requires_grad else 99
            return super().forward(x)

    with pytest.raises(spat.UserError, match="depend on the batch size, so choose a smaller one"):
        spat.evaluate(Later(model, 99), *data, AA, eps=EPS, exact=True, batch_size=20)


def test_few_classes_are_told() -> None:
    small, (x, y) = trained(3), blobs(10, 2, 3)
    notes = spat.evaluate(small, x, y, "apgd-t-2", eps=EPS).notes
    assert any("3 classes: 2 targets instead of 9." in note for note in notes)
    assert any("the margin stands in for targeted DLR" in note for note in notes)


def test_a_model_in_training_mode_is_told_and_given_back(data: Data) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(36, 5))
    seen: list[Event] = []
    outcomes = spat.evaluate(model, *data, "fgsm", eps=EPS, sink=seen.append)
    assert model.training
    said = [event.values["text"] for event in seen if event.kind == "note"]
    assert "the model was left in training mode: it was evaluated in evaluation mode." in said
    assert tuple(said) == outcomes.notes
    again = spat.evaluate(model.eval(), *data, "fgsm", eps=EPS)
    assert not any("training mode" in note for note in again.notes)
    assert np.array_equal(again.attacks["fgsm"].predicted, outcomes.attacks["fgsm"].predicted)


def test_images_that_depend_on_their_neighbours_are_told(data: Data) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(5, track_running_stats=False)

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.bn(x.flatten(1)[:, :5])
            return z

    notes = spat.evaluate(Norm().eval(), *data, "fgsm", eps=EPS).notes
    assert any("may depend on the batch size" in note for note in notes)


def test_a_model_on_two_devices_is_refused(data: Data) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.Linear(36, 5, device="meta"))
    with pytest.raises(spat.UserError, match=r"lies on several devices \(cpu, meta\)"):
        spat.evaluate(model, *data, "fgsm", eps=EPS)


def test_hasty_attacks_say_so(data: Data) -> None:
    fast, exact = (plan_attacks("aa fab", eps=EPS, exact=exact) for exact in (False, True))
    assert "frugal=True, patience=3.0" in repr(fast[0].attack)
    assert "frugal=True" in repr(fast[1].attack)
    assert "frugal=False" in repr(exact[0].attack)


@pytest.mark.parametrize(
    ("shape", "images"),
    [((3, 32, 32), 64), ((1, 28, 28), 250), ((1, 4, 4), 256), ((3, 224, 224), 1)],
)
def test_a_batch_suits_the_size_of_its_images(shape: tuple[int, ...], images: int) -> None:
    assert automatic(torch.device("cpu"), torch.Size(shape)) == images
