"""Transfer: what linear models answer in closed form, the white box on the diagonal, the counts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

import spat
from conftest import Convolutional, Linear
from spat.records import Event, Transferred
from spat.reporting.matrix import text_matrix
from spat.results.transferred import as_csv, cells

EPS = 0.04
SIMILAR = 4  # a seed whose model has much in common with that of seed 1


def two_classes(seed: int) -> Linear:
    rng = torch.Generator().manual_seed(seed)
    weight = torch.randn(2, 16, generator=rng)
    return Linear(weight - weight.mean(1, keepdim=True), torch.zeros(2))


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    """Away from the borders of the pixel box, so that no step is clipped."""
    rng = torch.Generator().manual_seed(9)
    x = 0.3 + 0.4 * torch.rand(60, 1, 4, 4, generator=rng)
    return x, torch.randint(0, 2, (60,), generator=rng)


def direction(model: Linear, y: Tensor) -> Tensor:
    """[n, 16] the gradient of the margin of the label over the other class."""
    w = model.weight.detach()
    return w[y] - w[1 - y]


def test_fgsm_between_linear_models_is_the_closed_form(data: tuple[Tensor, Tensor]) -> None:
    """FGSM on A lowers the margin m of B by eps <b, sign(a)>, whether A was right or not."""
    x, y = data
    a, b = two_classes(1), two_classes(SIMILAR)
    found = spat.transfer({"a": a}, {"b": b}, x, y, "fgsm", eps=EPS)
    d = direction(b, y)
    margin = (x.flatten(1) * d).sum(1)
    after = margin - EPS * (d * direction(a, y).sign()).sum(1)
    held = (margin > 0) & (after > 0)
    assert 0 < int(held.sum()) < int((margin > 0).sum())
    assert found.targets["b"].held("fgsm from a").tolist() == held.tolist()
    (cell,) = cells(found)
    assert (cell.n, cell.accuracy, cell.clean) == (
        60,
        pytest.approx(float(held.float().mean())),
        pytest.approx(float((margin > 0).float().mean())),
    )


def test_the_opposite_model_gains_nothing_from_its_twin(data: tuple[Tensor, Tensor]) -> None:
    """Against a model with the reverse gradient, the attack only helps."""
    x, y = data
    a = two_classes(1)
    b = Linear(-a.weight.detach(), torch.zeros(2))
    found = spat.transfer({"a": a}, {"b": b}, x, y, "fgsm pgd-3", eps=EPS)
    for attack in ("fgsm", "pgd-3"):
        assert found.targets["b"].accuracy(f"{attack} from a") == found.targets["b"].accuracy()


def test_between_twins_it_is_the_white_box(data: tuple[Tensor, Tensor]) -> None:
    """To a copy, to itself, and by `spat.evaluate`: one and the same answer."""
    x, y = data
    model = two_classes(1)
    twin = copy.deepcopy(model)
    found = spat.transfer({"m": model}, {"m": model, "twin": twin}, x, y, "pgd-5", eps=EPS)
    one, other = (found.targets[name].attacks["pgd-5 from m"] for name in ("m", "twin"))
    white_box = spat.evaluate(model, x, y, "pgd-5", eps=EPS).attacks["pgd-5"]
    assert white_box.broken.any()
    for column in (one, other, found.sources["m"].attacks["pgd-5"]):
        assert np.array_equal(column.predicted, white_box.predicted)
        assert np.allclose(column.distance, white_box.distance, atol=1e-6)
    assert [cell.white_box for cell in cells(found)] == [True, False]


def test_models_come_back_as_they_were(
    convolutional: Convolutional, images: tuple[Tensor, Tensor]
) -> None:
    twin = copy.deepcopy(convolutional)
    modes = [m.training for m in convolutional.modules()]
    state = {k: v.clone() for k, v in convolutional.state_dict().items()}
    before = torch.random.get_rng_state()
    spat.transfer({"a": convolutional}, {"b": twin}, *images, "pgd-2 md-2", eps=0.1)
    for model in (convolutional, twin):
        assert modes == [m.training for m in model.modules()]
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(before, torch.random.get_rng_state())


def test_results_do_not_depend_on_the_batch_size(data: tuple[Tensor, Tensor]) -> None:
    models = {"a": two_classes(1)}, {"b": two_classes(SIMILAR)}
    answers = [
        spat.transfer(*models, *data, "pgd-3", eps=EPS, batch_size=size).targets["b"].to_json()
        for size in (1, 7, 60)
    ]
    assert answers[0] == answers[1] == answers[2]


def test_a_device_that_runs_out_of_memory_gets_smaller_batches(
    data: tuple[Tensor, Tensor],
) -> None:
    """The source has room for ten images: the answer is that of a larger device."""

    class Small(Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 10:
                raise torch.OutOfMemoryError
            return super().forward(x)

    a, b = two_classes(1), two_classes(SIMILAR)
    small = Small(a.weight.detach(), a.bias.detach())
    answers = [
        spat.transfer({"a": source}, {"b": b}, *data, "pgd-3", eps=EPS).targets["b"].to_json()
        for source in (small, a)
    ]
    assert answers[0] == answers[1]


def test_exact_attacks_the_model_itself(data: tuple[Tensor, Tensor]) -> None:
    class Watched(Linear):
        asked = 0

        def forward(self, x: Tensor) -> Tensor:
            Watched.asked += x.requires_grad
            return super().forward(x)

    a = two_classes(1)
    watched = Watched(a.weight.detach(), a.bias.detach())
    exact = spat.transfer({"a": watched}, {"a": watched}, *data, "pgd-3", eps=EPS, exact=True)
    assert Watched.asked == 3
    fast = spat.transfer({"a": a}, {"a": a}, *data, "pgd-3", eps=EPS)
    assert exact.to_json() == fast.to_json()


def test_a_cosine_source_is_attacked_at_its_own_scale() -> None:
    model = spat.model("small-cnn", head="cosine", scale=7, size=16)
    x, y = torch.rand(4, 1, 16, 16), torch.tensor([0, 1, 2, 3])
    found = spat.transfer({"a": model}, {"a": model}, x, y, "pgd-1", eps=0.1)
    assert "loss_scale=7" in found.attacks["a"]["pgd-1"]
    assert list(found.sources["a"].attacks) == ["pgd-1"]


def test_progress_is_told(data: tuple[Tensor, Tensor]) -> None:
    seen: list[Event] = []
    a = two_classes(1)
    found = spat.transfer(
        {"a": a}, {"a": a}, *data, "fgsm", eps=EPS, batch_size=40, sink=seen.append
    )
    assert [e.values["done"] for e in seen] == [40, 60]
    assert seen[-1].values["held"] == int(found.sources["a"].held("fgsm").sum())
    assert seen[-1].values["attack"] == "fgsm from a"


@pytest.fixture
def found(data: tuple[Tensor, Tensor]) -> Transferred:
    a, b = two_classes(1), two_classes(SIMILAR)
    return spat.transfer({"a": a, "b": b}, {"b": b}, *data, "fgsm pgd-2", eps=8 / 255)


def test_the_share_that_crosses_over(found: Transferred) -> None:
    """Of what the attack breaks on the source and the target has right, how much breaks too."""
    rows = {(cell.attack, cell.source): cell for cell in cells(found)}
    assert list(rows) == [("fgsm", "a"), ("fgsm", "b"), ("pgd-2", "a"), ("pgd-2", "b")]
    own, other = found.sources["a"].attacks["fgsm"], found.targets["b"]
    tried = own.broken & other.correct
    cell = rows["fgsm", "a"]
    assert (cell.of, cell.fooled) == (
        tried.sum(),
        (tried & other.attacks["fgsm from a"].broken).sum(),
    )
    assert rows["fgsm", "b"].of == rows["fgsm", "b"].fooled > 0


def test_the_matrix_in_text(found: Transferred) -> None:
    text = text_matrix(found, plain=True)
    first, head, rule, clean, a, b, gap, *_ = text.splitlines()
    assert first == "fgsm, eps 8/255 (Linf), n = 60"
    assert head.split() == ["crafted", "on", "b"]
    assert set(rule) == {"-", " "}
    assert clean.split() == ["without", "attack", f"{100 * found.targets['b'].accuracy():.1f}"]
    assert a.startswith("a ")
    assert not a.endswith("*")
    assert f"{100 * found.targets['b'].accuracy('fgsm from a'):.1f} (" in a
    assert b.endswith(")*")
    assert gap == ""
    assert text.isascii()
    assert "right without attack and under it" in text


def test_as_csv(found: Transferred) -> None:
    lines = as_csv(cells(found)).splitlines()
    head = "attack,eps,norm,source,target,white_box,n,clean,accuracy,low,high,fooled,of"
    assert lines[0] == head
    assert len(lines) == 5
    assert lines[1].startswith(f"fgsm,{8 / 255},linf,a,b,False,60,")


def test_mistakes(data: tuple[Tensor, Tensor]) -> None:
    a, b = two_classes(1), two_classes(SIMILAR)
    with pytest.raises(spat.UserError, match="at least one source and one target"):
        spat.transfer({}, {"a": a}, *data, eps=EPS)
    with pytest.raises(spat.UserError, match="two models are both called 'a'"):
        spat.transfer({"a": a}, {"a": b}, *data, eps=EPS)
    with pytest.raises(spat.UserError, match="above 0, got 0"):
        spat.transfer({"a": a}, {"b": b}, *data, eps=0)
    with pytest.raises(spat.UserError, match=r"got 8\. Did you mean 8/255"):
        spat.transfer({"a": a}, {"b": b}, *data, eps=8)
    with pytest.raises(spat.UserError, match="unknown attack 'pgdd'"):
        spat.transfer({"a": a}, {"b": b}, *data, "pgdd", eps=EPS)
    with pytest.raises(spat.UserError, match=r"classes of the model \(0 to 1\), got 2"):
        spat.transfer({"a": a}, {"b": b}, data[0], data[1] + 1, eps=EPS)
