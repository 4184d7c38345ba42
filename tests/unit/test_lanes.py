"""Lanes: rows of a search side by side in threads, with the results of one lane."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spat
from spat.attacks.square import Square
from spat.evaluation import attack_by_name
from spat.evaluation._drive import Drive
from spat.evaluation._official import Official
from spat.evaluation._part import Task
from spat.evaluation._room import Room
from spat.evaluation._subject import Subject
from spat.evaluation._tally import Tally
from spat.fast import InBlocks, Split, crew, rowwise, split
from spat.modes import borrowed
from spat.records import Attacked
from spat.rng import PerExample

SEARCHES = ("apgd-ce-8", "apgd-t-8", "fab-t-8", "md-8", "square-100")
CPU, N, EPS = torch.device("cpu"), 70, 0.2
Data = tuple[Tensor, Tensor]


@pytest.fixture
def model() -> nn.Module:
    """Trained for a moment, so that rounds end at different steps."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    optimiser, (x, y) = torch.optim.Adam(net.parameters(), 1e-2), blobs(200, 0)
    for _ in range(40):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


def blobs(n: int, seed: int) -> Data:
    centres = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(9))
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=rng)
    return (centres[y] + 0.2 * torch.randn(n, 1, 8, 8, generator=rng)).clamp(0, 1), y


def same_rows(a: Attacked, b: Attacked) -> None:
    for name in ("predicted", "broken", "step", "stage"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert np.allclose(a.distance, b.distance, atol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", [*SEARCHES, "aa-60"])
def test_lanes_decide_nothing(name: str, exact: bool, model: nn.Module, two_threads: None) -> None:
    given = {"eps": EPS, "exact": exact, "batch_size": 48}
    side_by_side = spat.evaluate(model, *blobs(N, 2), name, **given)
    torch.set_num_threads(1)
    alone = spat.evaluate(model, *blobs(N, 2), name, **given)
    assert 0 < alone.accuracy(name) < alone.accuracy()
    same_rows(side_by_side.attacks[name], alone.attacks[name])


def task(model: nn.Module, name: str, n: int = N) -> Task:
    x, y = blobs(n, 2)
    subject = Subject(model, CPU, Room(48))
    examples = subject.examples(x, y, torch.arange(n))
    source = PerExample(5, examples.ids)
    return Task(attack_by_name(name, eps=EPS), 0, subject, examples, Tally.before(examples), source)


class StopError(Exception):
    pass


@pytest.mark.parametrize("threads", [2, 1])
@pytest.mark.parametrize(("name", "lanes"), [("apgd-t-8", 2), ("square-100", 1)])
def test_a_search_goes_on_from_its_lanes(
    name: str, lanes: int, threads: int, model: nn.Module, two_threads: None
) -> None:
    """On as many threads bit for bit; on fewer, with the rows of the lanes that are gone."""
    whole = task(model, name)
    steps = iter(range(1000))

    def stop(share: float) -> None:
        if next(steps) == 3:
            raise StopError

    with borrowed(model, CPU):
        Drive(whole).run(lambda share: None)
        part = task(model, name)
        first = Drive(part)
        with pytest.raises(StopError):
            first.run(stop)
        assert len(first.lanes) == lanes
        tensors = copy.deepcopy(first.tensors())
        torch.set_num_threads(threads)
        second = Drive(part)
        second.restore(tensors)
        assert len(second.lanes) == (lanes if threads >= lanes else 0)
        second.run(lambda share: None)
    for name, t in whole.tally.tensors().items():
        if threads == 2:
            assert torch.equal(t, part.tally.tensors()[name]), name
        else:
            torch.testing.assert_close(part.tally.tensors()[name], t, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["apgd-t-8", "fab-t-8"])
def test_an_official_chunk_goes_on_from_its_lanes(
    name: str, model: nn.Module, two_threads: None
) -> None:
    whole, part = task(model, name), task(model, name)
    steps = iter(range(1000))

    def stop(share: float) -> None:
        if next(steps) == 3:
            raise StopError

    with borrowed(model, CPU):
        Official(whole, 1).run(lambda share: None)
        first = Official(part, 1)
        with pytest.raises(StopError):
            first.run(stop)
        assert first.chunk is not None
        assert len(first.chunk.lanes) == 2
        second = Official(part, 1)
        second.restore(copy.deepcopy(first.tensors()))
        second.run(lambda share: None)
    assert bool(whole.tally.broken.any())
    for key, t in whole.tally.tensors().items():
        assert torch.equal(t, part.tally.tensors()[key]), key


def test_long_lanes_are_shortened(model: nn.Module, two_threads: None) -> None:
    with borrowed(model, CPU):
        drive = Drive(task(model, "apgd-ce-8"))
        drive._fill()
        assert drive._lengths == [24, 24]
        drive.lanes[0].keep(torch.arange(9))
        drive.next = len(drive.pairs)  # none to refill with
        drive._fill()
        assert sorted(drive._lengths) == [16, 17]
        drive.lanes[0].keep(torch.arange(5))
        drive.lanes[1].keep(torch.arange(2))
        drive._fill()
        assert sorted(drive._lengths) == [0, 7]  # too few for two


def test_official_squares_in_l2_are_not_divided(two_threads: None) -> None:
    """The rows draw from one generator, in an order that depends on all of them."""
    search = Square(norm="l2", official=True, queries=5)
    x, y = blobs(40, 2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    state = search.begin(net, search.batch(net, x, y, torch.Generator()))
    assert len(state.divided(2)) == 1
    state = (linf := Square(official=True, queries=5)).begin(
        net, linf.batch(net, x, y, torch.Generator())
    )
    assert [len(part) for part in state.divided(2)] == [20, 20]


class Remembering(nn.Module):
    """Keeps its features on the way: two threads would mix them up."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.features = torch.relu(self.hidden(x.flatten(1)))
        logits: Tensor = self.out(self.features)
        return logits


class Centred(nn.Module):
    """Sees its neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            x = x - x.mean(0)
        return x.flatten(1)


def test_a_model_that_keeps_its_features_is_run_by_its_graph() -> None:
    model, x = Remembering().eval(), torch.rand(4, 1, 2, 3)
    by = Split(2, workers=2)
    with torch.no_grad(), crew(by) as together:
        parts = together(rowwise(model), [x[:2], x[2:]])
        assert torch.allclose(torch.cat(parts), model(x), atol=1e-6)


@pytest.mark.parametrize(("n", "blocks"), [(1, [1]), (7, [7]), (8, [4, 4]), (21, [11, 10])])
def test_a_crew_answers_in_blocks(n: int, blocks: list[int], two_threads: None) -> None:
    sizes: list[int] = []

    class Heard(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            return super().forward(x)

    model, x, by = Heard(3, 2), torch.rand(n, 3), Split(21, workers=2)
    with crew(by) as together:
        answer = InBlocks(model, together, by, smallest=4)(x)
    assert sorted(sizes, reverse=True) == blocks
    assert not answer.requires_grad
    assert torch.allclose(answer, model(x), atol=1e-6)


def test_what_has_no_graph_stays_in_one_piece() -> None:
    model = Centred().eval()
    assert rowwise(model) is model
    assert split(rowwise(model), 64, CPU) == Split(64)
