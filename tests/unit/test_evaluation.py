"""Evaluation: one row per image, breaks verified, scales reported, wrong models refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spat
from conftest import Convolutional, Linear
from spat.evaluation import plan_attacks
from spat.evaluation.plan import attack_by_name
from spat.records import Attacked, Event, Outcomes


@pytest.fixture
def linear() -> Linear:
    rng = torch.Generator().manual_seed(1)
    return Linear(torch.randn(3, 16, generator=rng), torch.zeros(3))


@pytest.fixture
def data(linear: Linear) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(2)
    x = 0.3 + 0.4 * torch.rand(40, 1, 4, 4, generator=rng)
    y = linear(x).argmax(1)
    y[:10] = (y[:10] + 1) % 3  # ten are misclassified from the start
    return x, y


def least_eps(model: Linear, x: Tensor, y: Tensor) -> Tensor:
    z, w = model(x).detach(), model.weight.detach()
    gaps = (z.gather(1, y[:, None]) - z) / (w[y][:, None] - w[None]).abs().sum(2)
    return gaps.scatter(1, y[:, None], torch.inf).amin(1)


def test_accuracy_is_the_closed_form(linear: Linear, data: tuple[Tensor, Tensor]) -> None:
    """An image holds if it is right and its exact distance to another class is above eps."""
    x, y = data
    eps = float(least_eps(linear, x, y)[10:].median())
    outcomes = spat.evaluate(linear, x, y, "clean cw-40", eps=eps)
    holds = (linear(x).argmax(1) == y) & (least_eps(linear, x, y) > eps * 1.001)
    breaks = least_eps(linear, x, y) < eps * 0.999
    assert outcomes.accuracy() == 0.75
    robust = torch.from_numpy(outcomes.robust("cw-40"))
    assert bool((robust[holds]).all())
    assert not bool(robust[breaks].any())


def test_outcomes_account_for_every_image(linear: Linear, data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    outcomes = spat.evaluate(linear, x, y, "fgsm pgd-5", eps=0.05, batch_size=7)
    assert len(outcomes) == 40
    for name, found in outcomes.attacks.items():
        wrong = found.predicted != outcomes.labels
        assert np.array_equal(found.broken, wrong & outcomes.correct)
        assert np.array_equal(outcomes.robust(name), ~wrong)
        assert float(found.distance.max()) <= 0.05 + 1e-6
        assert not found.broken[:10].any()
    assert outcomes.accuracy("worst") <= min(map(outcomes.accuracy, outcomes.attacks))
    again = Outcomes.from_json(outcomes.to_json())
    assert again.to_json() == outcomes.to_json()


def test_the_worst_case_is_pointwise() -> None:
    labels = np.zeros(4, np.int64)
    columns = {}
    for name, broken in (("a", [1, 0, 0, 0]), ("b", [0, 1, 0, 0])):
        mask = np.array(broken, np.bool_)
        columns[name] = Attacked(
            mask.astype(np.int64), mask, np.zeros(4, np.float32), np.full(4, -1)
        )
    outcomes = Outcomes(np.arange(4), labels, np.array([0, 0, 0, 1]), columns, 0.1, "linf")
    assert outcomes.accuracy("clean") == 0.75
    assert outcomes.accuracy("a") == outcomes.accuracy("b") == 0.5
    assert outcomes.accuracy("worst") == 0.25


def test_results_do_not_depend_on_the_batch_size(
    convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    y = convolutional.eval()(x).argmax(1)
    one = spat.evaluate(convolutional, x, y, "pgd-3", eps=0.02, batch_size=1)
    all_at_once = spat.evaluate(convolutional, x, y, "pgd-3", eps=0.02, batch_size=100)
    assert np.allclose(
        one.attacks["pgd-3"].distance, all_at_once.attacks["pgd-3"].distance, atol=1e-6
    )
    assert np.array_equal(one.attacks["pgd-3"].predicted, all_at_once.attacks["pgd-3"].predicted)


def test_the_model_comes_back_as_it_was(
    convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    modes = [m.training for m in convolutional.modules()]
    state = {k: v.clone() for k, v in convolutional.state_dict().items()}
    spat.evaluate(convolutional, *images, "pgd-2", eps=0.1)
    assert modes == [m.training for m in convolutional.modules()]
    assert all(torch.equal(v, state[k]) for k, v in convolutional.state_dict().items())


def test_cosine_heads_are_attacked_at_both_scales() -> None:
    labels = [p.label for p in plan_attacks("fgsm pgd-20 cw-20", eps=0.1, scale=5.0)]
    assert labels == ["fgsm scale 1", "fgsm scale 5", "pgd-20 scale 1", "pgd-20 scale 5", "cw-20"]
    scales = [
        getattr(p.attack, "loss_scale", None) for p in plan_attacks("pgd-20", eps=0.1, scale=5.0)
    ]
    assert scales == [1.0, 5.0]
    assert [p.label for p in plan_attacks("pgd-20", eps=0.1)] == ["pgd-20"]


def test_a_trained_cosine_model_tells_its_scale() -> None:
    model = spat.model("small-cnn", head="cosine", scale=7, size=16)
    x, y = torch.rand(4, 1, 16, 16), torch.tensor([0, 1, 2, 3])
    assert set(spat.evaluate(model, x, y, "pgd-1", eps=0.1).attacks) == {
        "pgd-1 scale 1",
        "pgd-1 scale 7",
    }


def test_a_number_after_the_name_is_the_steps() -> None:
    assert attack_by_name("pgd-7", eps=0.1).steps == 7  # type: ignore[attr-defined]
    with pytest.raises(spat.UserError, match="fgsm has no number of steps; write 'fgsm'"):
        attack_by_name("fgsm-3", eps=0.1)
    with pytest.raises(spat.UserError, match="unknown attack 'pgdd-7'"):
        attack_by_name("pgdd-7", eps=0.1)


def test_progress_is_told(linear: Linear, data: tuple[Tensor, Tensor]) -> None:
    seen: list[Event] = []
    outcomes = spat.evaluate(linear, *data, "fgsm", eps=0.05, batch_size=20, sink=seen.append)
    told = [e.values["done"] for e in seen if e.kind == "attack"]
    assert told == sorted(told)
    assert told[-1] == seen[-1].values["n"] == 30
    assert seen[-1].values["held"] == int(outcomes.robust("fgsm").sum())


class Wrapped(nn.Module):
    def __init__(self, change: object) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x.flatten(1)[:, :3])  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda z: z.softmax(1), "probabilities, not logits"),
        (lambda z: z * torch.nan, "the model returns NaN or infinite logits"),
        (lambda z: z[:, 0], r"must return logits of shape \(40, classes\), got \(40,\)"),
        (lambda z: z[:5], r"must return logits of shape \(40, classes\), got \(5, 3\)"),
        (lambda z: [z], "must return a tensor of logits, got list"),
        (lambda z: z[:, :2], r"classes of the model \(0 to 1\), got 2"),
    ],
)
def test_wrong_models_get_one_sentence(
    change: object, text: str, data: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(spat.UserError, match=text):
        spat.evaluate(Wrapped(change), *data, "fgsm", eps=0.1)


def test_a_function_is_no_model(data: tuple[Tensor, Tensor]) -> None:
    text = "the model must be a torch.nn.Module, got function"
    with pytest.raises(spat.UserError, match=text):
        spat.evaluate(lambda x: x, *data, "fgsm", eps=0.1)  # type: ignore[arg-type]
    with pytest.raises(spat.UserError, match=text):
        spat.attack("fgsm")(lambda x: x, *data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("eps", "text"),
    [(8, r"got 8\. Did you mean 8/255"), (0, "above 0, got 0"), (-1, "above 0, got -1")],
)
def test_wrong_budgets(linear: Linear, data: tuple[Tensor, Tensor], eps: float, text: str) -> None:
    with pytest.raises(spat.UserError, match=text):
        spat.evaluate(linear, *data, "fgsm", eps=eps)
