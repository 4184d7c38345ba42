"""The cosine head against vectors from the authors' own code, and what must hold of it always."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from spat.errors import UserError
from spat.models import CosineHead, build_model, cosine_heads, head_scale, renormalise_heads
from spat.models._heads import make_head, unit

VECTORS = json.loads((Path(__file__).parents[1] / "golden" / "defence_vectors.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in VECTORS["cases"]}
FROM_FEATURES = sorted(name for name in CASES if name.startswith("spat.from_features."))


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def head_of(weight: Any, bias: Any = None) -> CosineHead:
    """A float64 head with given weights; no bias where they are all zero."""
    rows = double(weight)
    has_bias = bias is not None and any(bias)
    head = CosineHead(rows.shape[1], rows.shape[0], bias=has_bias).double()
    with torch.no_grad():
        head.weight.copy_(rows)
        if has_bias:
            head.bias.copy_(double(bias))
    return head


def accuracy_term(c: Tensor, y: Tensor, s: float, beta: float, detached: bool) -> Tensor:
    """The mean over the batch of -log softmax(s g c)_y, with the gains g written out."""
    true = nn.functional.one_hot(y, c.shape[1]).bool()
    source = c.detach() if detached else c
    gains = torch.where(true, 1 - source + beta, source + beta)
    return -(s * gains * c).log_softmax(1)[true].mean()


def robust_term(c: Tensor, c_adv: Tensor, s: float, alpha: float) -> Tensor:
    lp, lq = (s * c).log_softmax(1), (s * c_adv).log_softmax(1)
    t = lp.exp() * (lp - lq)
    return (alpha * t + t * t).sum(1).mean()


def assert_golden(got: Tensor, want: Any) -> None:
    torch.testing.assert_close(got.detach(), double(want), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", FROM_FEATURES)
def test_cosines_and_gradients_are_the_authors(name: str) -> None:
    given_, want = CASES[name]["inputs"], CASES[name]["expected"]
    head = head_of(given_["W_raw"], given_["bias"])
    z, z_adv = (double(given_[k]).requires_grad_() for k in ("z_nat", "z_adv"))
    y, s = torch.tensor(given_["labels"]), given_["s"]
    c, c_adv = head(z), head(z_adv)
    loss = accuracy_term(c, y, s, given_["m_beta"], name.endswith(".detached"))
    loss = loss + given_["lambda_"] * robust_term(c, c_adv, s, given_["n_alpha"])
    loss.backward()
    got = {"loss": loss, "cos_nat": c, "cos_adv": c_adv}
    got |= {"grad_W": head.weight.grad, "grad_z_nat": z.grad, "grad_z_adv": z_adv.grad}
    assert got.keys() == want.keys()
    for key, value in got.items():
        assert_golden(value, want[key])


def test_official_in_place_head_has_our_values_and_our_rows_after_renormalising() -> None:
    given_, want = (CASES["spat.head.official_inplace"][k] for k in ("inputs", "expected"))
    head = head_of(given_["W_raw"], given_["bias"])
    assert_golden(head(double(given_["z"])), want["logits_normalize_true"])
    head.renormalise_()
    assert_golden(head.weight, want["weight_after_call"])
    c = head(double(given_["z"]))
    loss = accuracy_term(c, torch.tensor(given_["labels"]), given_["s"], given_["m_beta"], False)
    loss.backward()
    assert_golden(c, want["logits_normalize_true"])
    assert_golden(loss, want["loss_acc"])
    assert_golden(head.weight.grad, want["grad_weight_in_graph_projected"])


def test_only_the_unit_path_exists_so_a_bias_cannot_flip_the_class() -> None:
    given_, want = (CASES["spat.head.bias_flip"][k] for k in ("inputs", "expected"))
    c = head_of(given_["W"], given_["bias"])(double([given_["z"]]))
    assert_golden(c[0], want["logits_unit"])
    assert int(c.argmax()) == want["argmax_unit"]


def test_rows_of_zeros_give_small_gradients() -> None:
    known = VECTORS["zero_init_head_in_graph"]
    head = head_of(torch.zeros(3, 4).tolist())
    loss = nn.functional.cross_entropy(head(torch.ones(2, 4).double()), torch.tensor([0, 1]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(known["loss"], rel=1e-9)
    assert 0 < head.weight.grad.abs().max() < 1 < known["max_abs_grad_in_graph"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_features_of_zeros_give_zero_cosines_and_small_gradients(dtype: torch.dtype) -> None:
    head = CosineHead(4, 3).to(dtype)
    z = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    head(z).sum().backward()
    assert bool((head(z) == 0).all())
    assert bool(z.grad.isfinite().all())
    assert float(z.grad.abs().max()) < 3.01
    assert bool((head.weight.grad == 0).all())


def test_normalising_does_not_touch_ordinary_rows() -> None:
    v = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    want = torch.stack([row / math.sqrt(sum(float(e) ** 2 for e in row)) for row in v])
    torch.testing.assert_close(unit(v), want, rtol=0, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-3, 1e3))
def test_scaling_features_or_rows_changes_nothing(seed: int, factor: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(3, 5, dtype=torch.float64, generator=draw)
    rows = torch.randn(4, 5, dtype=torch.float64, generator=draw)
    want = head_of(rows.tolist())(z)
    torch.testing.assert_close(head_of(rows.tolist())(factor * z), want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(head_of((factor * rows).tolist())(z), want, rtol=1e-9, atol=1e-12)
    assert float(want.detach().abs().max()) <= 1 + 1e-12


def test_gradient_agrees_with_finite_differences() -> None:
    head = head_of([[1.0, -2.0, 0.5], [0.3, 0.1, -1.0]], [0.1, -0.2])
    z = double([[0.4, 1.0, -0.7], [2.0, 0.0, 0.1]]).requires_grad_()
    parameters = [p.detach().requires_grad_() for p in (head.weight, head.bias)]

    def cosines(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional_call(head, {"weight": weight, "bias": bias}, (z,))

    assert torch.autograd.gradcheck(cosines, (z, *parameters))


def test_state_dict_is_that_of_the_linear_it_replaces() -> None:
    assert list(CosineHead(4, 3).state_dict()) == ["weight"]
    head, plain = CosineHead(4, 3, bias=True), nn.Linear(4, 3)
    assert list(head.state_dict()) == list(plain.state_dict())
    head.load_state_dict(plain.state_dict())
    assert torch.equal(head.weight, plain.weight)


def test_forward_changes_nothing() -> None:
    head = CosineHead(4, 3, bias=True)
    with torch.no_grad():
        head.weight.mul_(3)  # rows that a mutating forward would make unit
    before = {k: (v.clone(), v.data_ptr(), v._version) for k, v in head.state_dict().items()}
    head(torch.randn(2, 4)).sum().backward()
    for key, value in head.state_dict().items():
        saved, pointer, version = before[key]
        assert torch.equal(value, saved)
        assert (value.data_ptr(), value._version) == (pointer, version)


def test_renormalising_works_in_place() -> None:
    head = CosineHead(4, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0, 4, 0, 0], [0, 0, 0, 0], [1e-9, 0, 0, 0]]))
    weight, pointer = head.weight, head.weight.data_ptr()
    renormalise_heads(nn.Sequential(nn.Linear(4, 4), head))
    assert head.weight is weight
    assert weight.data_ptr() == pointer
    assert weight.requires_grad
    want = torch.tensor([[0.6, 0.8, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    torch.testing.assert_close(weight.detach(), want)


def test_starts_with_unit_rows() -> None:
    head = CosineHead(64, 10)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(10))
    head.reset_parameters()
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(10))


def test_heads_are_found_with_their_scale() -> None:
    model = build_model("resnet18", head="cosine", scale=9.0, width=0.125)
    assert cosine_heads(model) == [model.linear]
    assert head_scale(model) == 9.0
    assert head_scale(copy.deepcopy(model)) == 9.0
    assert head_scale(build_model("lenet5", scale=9.0)) == 1.0
    assert "scale=9.0" in repr(model.linear)


def test_linear_head_always_has_a_bias_and_cosine_on_demand() -> None:
    assert make_head("linear", 4, 3, bias=False, scale=5.0).bias is not None
    assert make_head("cosine", 4, 3, bias=False, scale=5.0).bias is None
    assert make_head("cosine", 4, 3, bias=True, scale=5.0).bias is not None


def test_unknown_head_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown head 'cosin'\. Did you mean 'cosine'"):
        make_head("cosin", 4, 3, bias=False, scale=5.0)
