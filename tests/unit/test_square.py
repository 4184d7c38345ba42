"""Square: its schedule and moves, streams that depend on nothing else, and exact resume."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional
from spat.attacks import _patience, square
from spat.attacks import _square as moves
from spat.attacks.square import Square, SquareState
from spat.rng import PerExample
from spat.threat import Norm, threat

NORMS: list[Norm] = ["linf", "l2"]
EPS = {"linf": 0.03, "l2": 0.3}


class PixelSum(nn.Module):
    """Weighted sums row by row, so that not a bit depends on the batch; slow to break."""

    def __init__(self, classes: int = 3, pixels: int = 128) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(4)
        self.weight = nn.Parameter(torch.randn(classes, pixels, generator=rng))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1)[:, None] * self.weight).sum(2)


def correct(
    model: nn.Module,
    n: int = 5,
    shape: tuple[int, ...] = (2, 8, 8),
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    with torch.no_grad():
        return x, model(x).argmax(1)


def begun(search: Square, model: nn.Module, x: Tensor, y: Tensor) -> SquareState:
    source = (
        torch.Generator().manual_seed(0) if search.official else PerExample(0, torch.arange(len(x)))
    )
    return search.begin(model, search.batch(model, x, y, source))


def test_the_published_schedule() -> None:
    """Sides for 32 x 32 images in the stages of 5000 queries."""
    plan = moves.Plan("linf", 0.8, (3, 32, 32), half_open=True)
    assert plan.sides[:8] == (29, 20, 14, 10, 7, 5, 4, 3)
    steps = torch.tensor(
        [0, 10, 11, 50, 51, 200, 201, 500, 501, 1000, 1001, 2000, 2001, 4000, 4001]
    )
    sides = plan.squares(steps, torch.zeros(len(steps), plan.numbers))[:, 2]
    assert sides.tolist() == [29, 29, 20, 20, 14, 14, 10, 10, 7, 7, 5, 5, 4, 4, 3]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 9), (1, 28, 28), (3, 4, 40)])
def test_squares_lie_inside_any_image(norm: Norm, shape: tuple[int, int, int]) -> None:
    plan = moves.Plan(norm, 0.8, shape, half_open=False)
    steps = torch.arange(0, 9000, 3)
    u = torch.rand(len(steps), plan.numbers, generator=torch.Generator().manual_seed(0))
    u[0], u[-1] = 0.0, 1 - 2**-24  # the least and the largest number that can be drawn
    squares = plan.squares(steps, u)
    if norm == "linf":
        corners, side = [squares[:, :2]], squares[:, 2]
    else:
        corners = [squares[:, :2], squares[:, 3:5]]
        side = torch.tensor(plan.sides)[squares[:, 2].long()]
    for corner in corners:
        assert bool((corner >= 0).all())
        assert bool((corner[:, 0] + side <= shape[1]).all())
        assert bool((corner[:, 1] + side <= shape[2]).all())


@pytest.mark.parametrize(("half_open", "furthest"), [(True, 6), (False, 7)])
def test_the_official_range_leaves_out_the_last_row(half_open: bool, furthest: int) -> None:
    plan = moves.Plan("linf", 0.8, (1, 8, 8), half_open=half_open)
    steps = torch.full((4000,), 4500)
    u = torch.rand(len(steps), plan.numbers, generator=torch.Generator().manual_seed(0))
    squares = plan.squares(steps, u)
    assert squares[:, 2].unique().tolist() == [1]
    assert squares[:, 0].max() == squares[:, 1].max() == furthest


def test_a_recoloured_square_stands_at_the_edge_of_the_ball() -> None:
    rng = torch.Generator().manual_seed(1)
    x = 0.4 + 0.2 * torch.rand(2, 3, 8, 8, generator=rng)
    eps = torch.tensor([0.05, 0.1])
    z = moves.stripes(x, eps, torch.rand(2, 3, 1, 8, generator=rng))
    plan = torch.tensor([[1.0, 2, 3, 1, -1, 1], [0, 0, 2, -1, -1, 1]])
    new = moves.recolour(z, x, eps, plan[:, None])[:, 0]
    for i in range(2):
        top, left, side = (int(v) for v in plan[i, :3])
        inside = torch.zeros(8, 8, dtype=torch.bool)
        inside[top : top + side, left : left + side] = True
        expected = plan[i, 3:, None] * eps[i]
        torch.testing.assert_close((new - x)[i][:, inside], expected.expand(-1, side * side))
        assert torch.equal(new[i][:, ~inside], z[i][:, ~inside])
    for i in range(2):
        shared = moves.recolour_one(z, x, eps, plan[i])
        assert torch.equal(shared[i], new[i])


def test_bumps_have_length_one_a_hill_and_a_valley() -> None:
    shapes = moves.bumps((7, 5, 3, 1))
    torch.testing.assert_close(shapes.square().sum((2, 3)), torch.ones(4, 2))
    assert torch.equal(shapes[0, 0].T, shapes[0, 1])
    assert bool((shapes[0, 0][:3] > 0).all())
    assert bool((shapes[0, 0][3:] < 0).all())
    assert not shapes[1, :, 5:].any()


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 7, 12), (2, 4, 4), (1, 2, 3)])
def test_l2_moves_keep_the_length(shape: tuple[int, int, int]) -> None:
    """Away from the pixel box nothing is lost: the change stays of length eps."""
    rng = torch.Generator().manual_seed(1)
    plan = moves.Plan("l2", 0.8, shape, half_open=False)
    x, eps = torch.full((4, *shape), 0.5), torch.tensor([0.05, 0.1, 0.15, 0.2])
    z = moves.mosaic(
        x, eps, torch.rand(4, len(moves.tiles(*shape[1:])[1]), shape[0] + 1, generator=rng)
    )
    torch.testing.assert_close((z - x).flatten(1).norm(dim=1), eps)
    for step in (0, 20, 1000, 4999):
        squares = plan.squares(torch.full((4,), step), torch.rand(4, plan.numbers, generator=rng))
        z = moves.transfer(z, x, eps, squares, plan.sides)
        torch.testing.assert_close((z - x).flatten(1).norm(dim=1), eps)


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_the_margin_only_falls_and_is_that_of_the_image(norm: Norm, official: bool) -> None:
    model = PixelSum()
    x, y = correct(model)
    search = Square(eps=EPS[norm], norm=norm, official=official)
    state = begun(search, model, x, y)
    first = state.margin
    for _ in range(60):
        before = state.margin
        search.advance(model, state)
        assert bool((state.margin <= before).all())
        assert torch.equal(spat.losses.margin(model(state.z), y), state.margin)
        assert bool((threat(norm, EPS[norm]).distance(state.z, x) <= EPS[norm] + 1e-6).all())
    assert bool((state.margin < first).any())


@pytest.mark.parametrize("norm", NORMS)
def test_a_row_depends_on_nothing_but_its_id(norm: Norm) -> None:
    """Alone, in any order or beside others: the same queries, to the last bit."""
    model = PixelSum()
    x, y = correct(model, 6)
    attack, ids = Square(eps=EPS[norm], norm=norm, queries=150), torch.tensor([5, 0, 9, 2, 7, 1])
    together = attack(model, x, y, rng=PerExample(3, ids))
    for order in ([5, 4, 3, 2, 1, 0], [2], [4, 0]):
        part = torch.tensor(order)
        again = attack(model, x[part], y[part], rng=PerExample(3, ids[part]))
        assert torch.equal(again, together[part])


def test_rows_of_any_age_share_a_batch() -> None:
    model = PixelSum()
    x, y = correct(model, 4)
    search = Square(eps=EPS["linf"], queries=100)
    alone = begun(search, model, x, y)
    for _ in range(100):
        search.advance(model, alone)
    batch = search.batch(model, x, y, PerExample(0, torch.arange(4)))
    state = search.begin(model, batch.take(torch.tensor([0, 1])))
    for age in range(170):
        if age == 70:  # in the midst of what was drawn ahead
            state.append(search.begin(model, batch.take(torch.tensor([2, 3]))))
        search.advance(model, state)
    assert torch.equal(state.z, alone.z)
    assert torch.equal(state.step, alone.step)


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("pause", [1, 40, 64, 65])
def test_stops_anywhere_and_goes_on_exactly(norm: Norm, official: bool, pause: int) -> None:
    model = PixelSum()
    x, y = correct(model)
    search = Square(eps=EPS[norm], norm=norm, official=official, queries=200)
    state = begun(search, model, x, y)
    for _ in range(pause):
        search.advance(model, state)
    saved = state.tensors()
    for _ in range(100):
        search.advance(model, state)
    for _ in range(2):  # what was saved is not used up
        resumed = SquareState.restore(saved)
        for _ in range(100):
            search.advance(model, resumed)
        for name, value in state.tensors().items():
            assert torch.equal(value, resumed.tensors()[name]), name


@pytest.mark.parametrize("norm", NORMS)
def test_with_a_generator_each_row_still_has_its_own_squares(norm: Norm) -> None:
    model = PixelSum()
    x = correct(model, 1)[0].expand(4, -1, -1, -1)
    y = model(x).argmax(1)
    x_adv = Square(eps=EPS[norm], norm=norm, queries=20)(model, x, y, rng=7)
    assert not torch.equal(x_adv[0], x_adv[1])
    assert torch.equal(x_adv, Square(eps=EPS[norm], norm=norm, queries=20)(model, x, y, rng=7))


def test_finds_its_way_through_masked_gradients() -> None:
    class Rounded(PixelSum):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.round(x * 8) / 8)

    model = Rounded()
    x, y = correct(model, 8)
    broken = {
        name: int((model(spat.attack(name, eps=0.06)(model, x, y, rng=0)).argmax(1) != y).sum())
        for name in ("apgd-ce", "square")
    }
    assert broken["square"] > broken["apgd-ce"]


def one_at_a_time(search: Square, model: nn.Module, state: SquareState) -> None:
    """The slow twin: query by query, each a forward of its own, no-ops included."""
    plan = moves.Plan(search.norm, search.share, tuple(state.x.shape[1:]), half_open=False)  # type: ignore[arg-type]
    for i in range(len(state)):
        row = slice(i, i + 1)
        x, y, eps, z = state.x[row], state.y[row], state.eps[row], state.z[row]
        margin, history, limit = state.margin[row], state.history[row], state.limit[row]
        broken, step = bool(state.broken[i]), 0
        while not broken and step < int(limit):
            numbers = PerExample(state.seed, state.ids[row] * 8192 + step).uniform(plan.numbers)
            square = plan.squares(torch.tensor([step]), numbers).to(x)
            if search.norm == "linf":
                new = moves.recolour(z, x, eps, square[:, None])[:, 0]
            else:
                new = moves.transfer(z, x, eps, square, plan.sides)
            step, logits = step + 1, model(new)
            found = spat.losses.margin(logits, y)
            if bool(found < margin) or bool(found <= 0):
                z, margin = new, found
            broken = bool(logits.argmax(1) != y)
            if search.patience:
                at = torch.tensor([step])
                history, limit = _patience.look(history, margin, at, limit, search.patience)
        state.z[i], state.margin[i], state.history[i] = z[0], margin[0], history[0]
        state.step[i], state.limit[i], state.broken[i] = step, limit[0], broken
        if broken and int(state.step_found[i]) < 0:
            state.step_found[i] = step


@pytest.mark.parametrize("patience", [0.0, 1.5])
@pytest.mark.parametrize("together", [1, 7, 40])
@pytest.mark.parametrize(
    ("n", "shape", "classes"), [(5, (2, 8, 8), 3), (1, (1, 5, 9), 2), (13, (1, 7, 7), 4)]
)
@pytest.mark.parametrize("norm", NORMS)
def test_looking_ahead_decides_nothing(
    norm: Norm,
    n: int,
    shape: tuple[int, int, int],
    classes: int,
    together: int,
    patience: float,
) -> None:
    """As many queries a forward as there are, and one after the other: the same to the last bit."""
    model = PixelSum(classes, math.prod(shape)).double()
    x, y = correct(model, n, shape, torch.float64)
    eps = EPS[norm] * (1 + torch.arange(n, dtype=torch.float64) / n)
    search = Square(eps=eps, norm=norm, queries=330, patience=patience, restarts=2)
    batch = search.batch(model, x, y, PerExample(3, torch.arange(n) * 7))
    for restart in range(2):
        state, twin = (search.begin(model, batch, restart) for _ in range(2))
        state.together = together
        while bool(state.active.any()):
            search.advance(model, state)
        twin.z, twin.margin = twin.z.clone(), twin.margin.clone()
        one_at_a_time(search, model, twin)
        for name in ("z", "margin", "step", "limit", "broken", "step_found", "history"):
            assert torch.equal(getattr(state, name), getattr(twin, name)), name


def asked(model: nn.Module, search: Square, state: SquareState) -> list[int]:
    """The rows of each forward, to the end."""
    sizes: list[int] = []

    class Heard(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            sizes.append(len(z))
            logits: Tensor = model(z)
            return logits

    while bool(state.active.any()):
        search.advance(Heard(), state)
    return sizes


def test_forwards_are_large_and_few_in_vain() -> None:
    """What changes nothing is not asked; what is asked in vain is little of what there is."""
    model = PixelSum(pixels=64)
    x, y = correct(model, 4, (1, 8, 8))
    search = Square(eps=1e-3, queries=2000)
    ahead, alone = begun(search, model, x, y), begun(search, model, x, y)
    alone.together = 1
    few, many = asked(model, search, alone), asked(model, search, ahead)
    assert torch.equal(ahead.z, alone.z)
    assert max(few) == 4
    assert max(many) == min(square.together(x), 4 * square.FURTHEST)
    assert len(many) < len(few) / 6
    assert sum(few) < 0.9 * 4 * 2000
    assert sum(few) <= sum(many) < 1.3 * sum(few)


def test_looks_ahead_by_less_where_memory_ends() -> None:
    model = PixelSum()
    x, y = correct(model, 3)

    class Small(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            if len(z) > 10:
                raise torch.OutOfMemoryError
            logits: Tensor = model(z)
            return logits

    search = Square(eps=EPS["linf"], queries=200)
    state, whole = begun(search, Small(), x, y), begun(search, model, x, y)
    assert max(asked(model, search, whole)) > 10
    assert max(asked(Small(), search, state)) > 10  # it was tried
    assert state.together <= 10
    assert torch.equal(state.z, whole.z)
    many = begun(Square(eps=1e-3), model, *correct(model, 20))
    with pytest.raises(torch.OutOfMemoryError):  # with one query each, it is not for the search
        asked(Small(), Square(eps=1e-3), many)


@pytest.mark.parametrize("norm", NORMS)
def test_restarts_draw_other_squares(norm: Norm) -> None:
    model = PixelSum()
    x, y = correct(model)
    for official in (False, True):
        search = Square(eps=EPS[norm], norm=norm, queries=10, restarts=2, official=official)
        source = torch.Generator().manual_seed(1)
        batch = search.batch(model, x, y, source)
        first, second = search.begin(model, batch, 0), search.begin(model, batch, 1)
        assert not torch.equal(first.z, second.z)
        search.advance(model, first)
        assert search.search(model, batch).x_adv.shape == x.shape


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_all_misclassified_all_broken_or_none(norm: Norm, official: bool) -> None:
    model = PixelSum()
    x, y = correct(model)
    wrong = (y + 1) % 3
    assert torch.equal(Square(norm=norm, official=official, queries=5)(model, x, wrong), x)
    wide = Square(eps=1.0 if norm == "linf" else 20.0, norm=norm, official=official, queries=300)
    assert bool((model(wide(model, x, y)).argmax(1) != y).all())
    narrow = Square(eps=1e-6, norm=norm, official=official, queries=20)
    assert bool((model(narrow(model, x, y)).argmax(1) == y).all())
    for queries in (0, 1):
        few = Square(eps=EPS[norm], norm=norm, official=official, queries=queries)
        assert few(model, x, y).shape == x.shape


def test_an_equal_margin_is_no_progress() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[1.0, 0.0]]).expand(len(x), -1)

    x, y = torch.rand(2, 1, 6, 6), torch.zeros(2, dtype=torch.int64)
    search = Square(eps=0.1)
    state = begun(search, Constant(), x, y)
    first = state.z
    for _ in range(5):
        search.advance(Constant(), state)
    assert torch.equal(state.z, first)


def test_a_tie_ends_a_row_in_the_official_code_only() -> None:
    class Tie(nn.Module):
        """Equal logits as soon as a pixel moves, and the label comes first."""

        def forward(self, x: Tensor) -> Tensor:
            same = (x - 0.5).abs().flatten(1).amax(1) > 1e-3
            return torch.stack([1.0 - same.float(), torch.zeros(len(x))], 1)

    x, y = torch.full((2, 1, 6, 6), 0.5), torch.zeros(2, dtype=torch.int64)
    for official in (False, True):
        search = Square(eps=0.1, queries=50, official=official)
        state = begun(search, Tie(), x, y)
        assert not state.broken.any()
        assert bool(state.active.all()) is not official


@pytest.mark.parametrize("norm", NORMS)
def test_one_image_that_is_not_square_and_two_classes(norm: Norm) -> None:
    for shape in ((1, 5, 9), (3, 9, 2)):
        model = Convolutional(classes=2, channels=shape[0])
        x = torch.rand(1, *shape)
        attack = Square(eps=0.1, norm=norm, queries=30)
        assert attack(model, x, torch.tensor([1]), rng=0).shape == x.shape


def given_up_at(slope: float, patience: float, limit: int = 640) -> int:
    """The step at which a row whose way of 1 shrinks by `slope` every four-fold is given up."""
    history, rows = _patience.no_looks(torch.ones(1)), torch.ones(1, dtype=torch.int64)
    for step in range(1, limit + 1):
        missing = 1 - slope * torch.log(step * torch.ones(1)) / math.log(4)
        history, end = _patience.look(history, missing, step * rows, limit * rows, patience)
        if int(end) < limit:
            return step
    return limit


def test_a_row_is_given_up_when_its_progress_cannot_do() -> None:
    """With slope 0.2, a way of 1 takes 4^5 = 1024 steps."""
    assert given_up_at(0.2, patience=1) == 80
    assert given_up_at(0.2, patience=1, limit=2048) == 2048  # it arrives in time
    assert given_up_at(0.2, patience=2) == 640  # or would, twice as fast
    assert given_up_at(0.1, patience=2) == 80
    assert given_up_at(0.0, patience=1000) == 80
    assert given_up_at(-1.0, patience=1) == 80


@pytest.mark.parametrize("norm", NORMS)
def test_patience_can_only_miss_breaks(norm: Norm) -> None:
    model = PixelSum()
    x, y = correct(model, 30)
    source = PerExample(0, torch.arange(len(x)))
    plain, patient = (
        (search := Square(eps=EPS[norm], norm=norm, queries=400, patience=patience)).search(
            model, search.batch(model, x, y, source)
        )
        for patience in (0.0, 2.0)
    )
    assert torch.equal(plain.x_adv[patient.broken], patient.x_adv[patient.broken])
    assert bool((plain.broken | ~patient.broken).all())


def refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(spat.UserError, match=text):
        call()


def test_wrong_use() -> None:
    refused(lambda: Square(queries=-1), r"queries must lie in \[0, 8191\], got -1")
    refused(lambda: Square(share=0.0), r"share must lie in \(0, 1\], got 0")
    refused(lambda: Square(patience=-1.0), "patience must be 0 or more, got -1")
    refused(lambda: Square(restarts=0), "restarts must be 1 or more, got 0")
    model = PixelSum()
    x, y = correct(model)
    refused(lambda: Square()(model, x.flatten(1), y), r"square needs images \[n, channels, h, w\]")
    source = PerExample(0, torch.arange(len(x)))
    refused(lambda: Square(official=True)(model, x, y, rng=source), "needs a torch.Generator")
    shared = begun(Square(official=True), model, x, y)
    with pytest.raises(ValueError, match="squares of their own"):
        shared.append(begun(Square(official=True), model, x, y))
