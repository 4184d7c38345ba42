"""The official AutoAttack (`pyautoattack`) as the oracle of exact mode: the same verdicts.

The oracle draws from the global generator and prints warnings; both are kept inside `official`.
"""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
import torch.nn.functional as F
from pyautoattack import AutoAttack
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack
from torch import Tensor, nn

from spat.attacks._search import Batch, Search
from spat.attacks._standard import run_exact, standard, standard_exact
from spat.attacks._state import State
from spat.attacks.apgd_ce import ApgdCE
from spat.attacks.apgd_dlr import ApgdDLR
from spat.attacks.apgd_t import ApgdT
from spat.attacks.fab import FAB
from spat.attacks.fab_t import FabT
from spat.attacks.square import Square
from spat.evaluation._official import Official
from spat.evaluation._part import FEWEST, Task
from spat.evaluation._room import Room
from spat.evaluation._subject import Subject
from spat.evaluation._tally import Tally
from spat.fast import split
from spat.modes import borrowed
from spat.rng import PerExample

SEED, QUERIES, CLASSES, SHAPE = 3, 200, 5, (3, 10, 10)
EPS = {"linf": (6 / 255, 9 / 255), "l2": (0.3, 0.5)}
LINF = [("linf", strength, n) for strength in (0, 1) for n in (20, 12)]  # which of EPS; images
CASES = [*LINF, ("l2", 0, 20), ("l2", 1, 12)]
NAMES = ("perceptron", "convolutional", "normalised")
Models = Mapping[str, nn.Module]
Images = tuple[Tensor, Tensor]


def noisy(n: int, classes: int, seed: int) -> Images:
    """Noisy copies of one faint pattern per class: a task of which part can be learnt robustly."""
    patterns = torch.rand((classes, *SHAPE), generator=torch.Generator().manual_seed(123))
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=rng)
    noise = 0.15 * torch.randn((n, *SHAPE), generator=rng)
    return (0.5 + 0.2 * (patterns[y] - 0.5) + noise).clamp(0, 1), y


def untrained(classes: int) -> Models:
    c, h, w = SHAPE
    perceptron = [nn.Flatten(), nn.Linear(c * h * w, 64), nn.ReLU(), nn.Linear(64, classes)]
    convolutional = [nn.Conv2d(c, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
    normalised = [nn.Conv2d(c, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.AvgPool2d(2)]
    return {
        "perceptron": nn.Sequential(*perceptron),
        "convolutional": nn.Sequential(*convolutional, nn.Flatten(), nn.Linear(216, classes)),
        "normalised": nn.Sequential(*normalised, nn.Flatten(), nn.Linear(64, classes)),
    }


def trained(classes: int) -> Models:
    """A few seconds of adversarial training (one step), so that about half is robust."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        models = untrained(classes)
    x, y = noisy(1500, classes, seed=0)
    for model in models.values():
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        rng = torch.Generator().manual_seed(5)
        for _ in range(100):
            at = torch.randint(len(x), (128,), generator=rng)
            part = x[at].requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(part), y[at]), part)
            moved = (part.detach() + 0.03 * gradient.sign()).clamp(0, 1)
            optimiser.zero_grad()
            F.cross_entropy(model(moved), y[at]).backward()
            optimiser.step()
        model.eval()
    return models


@pytest.fixture(scope="module")
def models() -> Models:
    return trained(CLASSES)


@pytest.fixture(scope="module")
def images() -> Images:
    return noisy(20, CLASSES, seed=9)


@contextlib.contextmanager
def official() -> Iterator[None]:
    with (
        torch.random.fork_rng(),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def official_robust(
    model: nn.Module,
    images: Images,
    *,
    eps: float,
    norm: str,
    batch_size: int,
    attacks: list[str] | None = None,
    queries: int = QUERIES,
    targets: int = CLASSES - 1,
) -> Tensor:
    """[n] whether the official code leaves an example robust."""
    x, y = images
    with official():
        version = "custom" if attacks else "standard"
        kind = {"linf": "Linf", "l2": "L2"}[norm]
        run = AutoAttack(
            model, eps=eps, norm=kind, seed=SEED, version=version, attacks=attacks, device="cpu"
        )
        for part in (run.apgd, run.apgd_targeted, run.fab, run.square):
            part.n_restarts = 1
        run.apgd_targeted.n_target_classes = run.fab.n_target_classes = targets
        run.square.n_queries, run.square.resc_schedule = queries, False
        x_adv, _ = run.run_standard_evaluation(x, y, batch_size=batch_size)
        with torch.no_grad():
            return model(x_adv).argmax(1) == y


SINGLE: dict[str, Callable[..., Search]] = {
    "apgd-ce": ApgdCE,
    "apgd-dlr": ApgdDLR,
    "apgd-t": ApgdT,
    "fab": FAB,
    "fab-t": FabT,
    "square": lambda **given: Square(queries=QUERIES, official=True, **given),
}


@pytest.mark.parametrize("batch_size", [20, 12])
@pytest.mark.parametrize("strength", [0, 1])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attack", ["apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square"])
def test_each_attack_leaves_the_same_examples_robust(
    attack: str, name: str, strength: int, batch_size: int, models: Models, images: Images
) -> None:
    model, eps = models[name], EPS["linf"][strength]
    expected = official_robust(
        model, images, eps=eps, norm="linf", batch_size=batch_size, attacks=[attack]
    )
    mine = run_exact(
        {attack: SINGLE[attack](eps=eps)}, model, *images, batch_size=batch_size, seed=SEED
    )
    assert torch.equal(mine.robust, expected)


@pytest.mark.parametrize(("strength", "batch_size"), [(0, 12), (1, 20)])
@pytest.mark.parametrize("attack", SINGLE)
@pytest.mark.parametrize("name", NAMES)
def test_each_attack_in_l2(
    attack: str, name: str, strength: int, batch_size: int, models: Models, images: Images
) -> None:
    model, eps = models[name], EPS["l2"][strength]
    given = {"eps": eps, "norm": "l2"}
    expected = official_robust(model, images, **given, batch_size=batch_size, attacks=[attack])
    attacks = {attack: SINGLE[attack](**given)}
    mine = run_exact(attacks, model, *images, batch_size=batch_size, seed=SEED)
    assert torch.equal(mine.robust, expected)


@pytest.mark.parametrize("batch_size", [20, 12])
@pytest.mark.parametrize("strength", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_standard_gives_the_same_verdicts(
    name: str, strength: int, batch_size: int, models: Models, images: Images
) -> None:
    model, eps = models[name], EPS["linf"][strength]
    expected = official_robust(model, images, eps=eps, norm="linf", batch_size=batch_size)
    mine = standard_exact(
        model, *images, eps=eps, batch_size=batch_size, seed=SEED, queries=QUERIES
    )
    assert torch.equal(mine.robust, expected)
    assert 0 < int(expected.sum()) < len(expected)  # else the comparison would say little


@pytest.mark.parametrize("name", NAMES)
def test_standard_in_l2(name: str, models: Models, images: Images) -> None:
    given = {"eps": EPS["l2"][0], "norm": "l2", "batch_size": 20, "queries": QUERIES}
    expected = official_robust(models[name], images, **given)
    mine = standard_exact(models[name], *images, seed=SEED, **given)
    assert torch.equal(mine.robust, expected)
    assert 0 < int(expected.sum()) < len(expected)


@pytest.mark.parametrize("attack", ["apgd-ce", "apgd-t", "fab-t", "square"])
def test_lanes_give_the_same_verdicts(attack: str, models: Models) -> None:
    """As an evaluation runs a stage: the graph of the model, in parts on two threads."""
    model, (x, y), device = models["convolutional"], noisy(64, CLASSES, 9), torch.device("cpu")
    expected = official_robust(
        model, (x, y), eps=5 / 255, norm="linf", batch_size=64, attacks=[attack]
    )
    torch.set_num_threads(2)
    try:
        with borrowed(model, device):
            subject = Subject(model, device, Room(64))
            examples = subject.examples(x, y, torch.arange(64))
            tally, source = Tally.before(examples), PerExample(0, examples.ids)
            task = Task(SINGLE[attack](eps=5 / 255), 0, subject, examples, tally, source)
            assert split(subject.copy, 64, device, smallest=FEWEST).workers == 2
            Official(task, SEED).run(lambda share: None)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(tally.todo & ~tally.broken, expected)
    assert 2 * FEWEST < int(expected.sum()) < int(tally.todo.sum())


@pytest.mark.slow
def test_standard_in_full() -> None:
    """Ten classes, nine targets, 5000 queries: nothing shortened."""
    model, images = trained(10)["normalised"], noisy(24, 10, seed=9)
    expected = official_robust(
        model, images, eps=9 / 255, norm="linf", batch_size=24, queries=5000, targets=9
    )
    mine = standard_exact(model, *images, eps=9 / 255, batch_size=24, seed=SEED)
    assert torch.equal(mine.robust, expected)


class Rounded(nn.Module):
    """Gradients are zero wherever the input is rounded: only Square finds a way."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(torch.round(x * 15) / 15)
        return logits


def test_what_only_square_breaks_is_the_same(models: Models, images: Images) -> None:
    model = Rounded(models["perceptron"])
    expected = official_robust(model, images, eps=0.1, norm="linf", batch_size=12)
    mine = standard_exact(model, *images, eps=0.1, batch_size=12, seed=SEED, queries=QUERIES)
    assert torch.equal(mine.robust, expected)
    assert int((mine.broken_by == mine.names.index("square")).sum()) > 1


def unshrunk(search: Search, model: nn.Module, images: Images, round: int = 0) -> State:
    """All steps of one round with no row leaving, as the official code runs it."""
    x, y = images
    with borrowed(model, x.device):
        batch: Batch = search.batch(model, x, y, torch.Generator().manual_seed(SEED))
        state: State = search.begin(model, batch, round)
        for _ in range(int(state.limit.max())):
            search.advance(model, state)
    return state


@pytest.mark.parametrize(("norm", "strength", "n"), CASES)
@pytest.mark.parametrize("loss", ["ce", "dlr"])
@pytest.mark.parametrize("name", NAMES)
def test_apgd_reaches_the_same_losses(
    name: str, loss: str, norm: str, strength: int, n: int, models: Models, images: Images
) -> None:
    eps, kind = EPS[norm][strength], {"linf": "Linf", "l2": "L2"}[norm]
    images = (images[0][:n], images[1][:n])
    with official():
        oracle = APGDAttack(models[name], norm=kind, eps=eps, loss=loss, device="cpu")
        oracle.init_hyperparam(images[0])
        torch.manual_seed(SEED)
        x_best, robust, loss_best, x_found = oracle.attack_single_run(*images)
    search = {"ce": ApgdCE, "dlr": ApgdDLR}[loss](eps=eps, norm=norm)
    mine = unshrunk(search, models[name], images)
    torch.testing.assert_close(mine.score, loss_best, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mine.best, x_best, rtol=0, atol=1e-6)
    assert torch.equal(mine.broken, robust == 0)
    torch.testing.assert_close(mine.x_found[mine.broken], x_found[mine.broken], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("norm", "strength", "n"), CASES)
@pytest.mark.parametrize("target", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_targeted_apgd_reaches_the_same_losses(
    name: str, target: int, norm: str, strength: int, n: int, models: Models, images: Images
) -> None:
    eps, kind, model = EPS[norm][strength], {"linf": "Linf", "l2": "L2"}[norm], models[name]
    images = (images[0][:n], images[1][:n])
    with official():
        oracle = APGDAttack_targeted(model, norm=kind, eps=eps, device="cpu")
        oracle.init_hyperparam(images[0])
        oracle.loss = "dlr-targeted"
        right = images[1] == model(images[0]).argmax(1)
        part = (images[0][right], images[1][right])
        oracle.y_target = model(part[0]).argsort(1)[:, -(target + 2)]
        torch.manual_seed(SEED)
        _, robust, loss_best, _ = oracle.attack_single_run(*part)
    mine = unshrunk(ApgdT(eps=eps, norm=norm), model, part, target)
    torch.testing.assert_close(mine.score, loss_best, rtol=1e-6, atol=1e-6)
    assert torch.equal(mine.broken, robust == 0)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The oracle in double precision, which it casts down from and makes its constants without.

    FAB leaps where a ReLU turns: moved by the last bit of a float32, an image ends up to a fifth
    farther away, by the oracle as by any twin of it. In float64 the two walk the same way.
    """
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("n", [20, 12])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", NAMES)
def test_targeted_fab_comes_as_near(
    name: str, norm: str, n: int, models: Models, images: Images
) -> None:
    """Whatever eps is: it decides nothing before the distance is compared with it."""
    model, kind = copy.deepcopy(models[name]).double(), {"linf": "Linf", "l2": "L2"}[norm]
    x, y = images[0][:n].double(), images[1][:n]
    with torch.no_grad():
        right = y == model(x).argmax(1)
    x, y = x[right], y[right]
    with official():
        oracle = FABAttack_PT(model, norm=kind, eps=0.1, targeted=True, device="cpu")
        oracle.target_class = 3
        nearest = oracle.attack_single_run(x, y, is_targeted=True)
    mine = unshrunk(FabT(eps=0.0, norm=norm), model, (x, y), 1)
    order = {"linf": torch.inf, "l2": 2}[norm]
    distance = torch.linalg.vector_norm((nearest - x).flatten(1), order, 1)
    torch.testing.assert_close(mine.distance, distance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("norm", "strength", "n"), CASES)
@pytest.mark.parametrize("name", NAMES)
def test_square_asks_the_same_queries(
    name: str, norm: str, strength: int, n: int, models: Models, images: Images
) -> None:
    eps, asked, kind = EPS[norm][strength], 150, {"linf": "Linf", "l2": "L2"}[norm]
    images = (images[0][:n], images[1][:n])
    with official():
        oracle = SquareAttack(
            models[name], norm=kind, eps=eps, n_queries=asked, resc_schedule=False, device="cpu"
        )
        oracle.init_hyperparam(images[0])
        torch.manual_seed(SEED)
        _, x_best = oracle.attack_single_run(*images)
        margin, _ = oracle.margin_and_loss(x_best, images[1])
    search = Square(eps=eps, norm=norm, queries=asked, official=True)
    mine = unshrunk(search, models[name], images)
    torch.testing.assert_close(mine.score, -margin, rtol=1e-5, atol=1e-5)
    if norm == "linf":  # in L2 lengths are summed in another order
        assert torch.equal(mine.best, x_best)


def test_the_global_generator_is_not_touched(models: Models, images: Images) -> None:
    before = torch.get_rng_state()
    standard_exact(models["perceptron"], *images, eps=0.05, queries=5)
    assert torch.equal(before, torch.get_rng_state())


def test_the_sequence_is_the_official_one() -> None:
    attacks = standard(eps=0.1)
    assert list(attacks) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert attacks["square"].queries == 5000  # type: ignore[attr-defined]
    assert attacks["apgd-t"].rounds(10) == attacks["fab-t"].rounds(10) == 9
