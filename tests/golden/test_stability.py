"""Large logit gaps in float32: finite, and equal to float64, where published codes return NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from golden.vectors import FILE, tensor
from spat.catalog import build, names, presets

GAPS = (30.0, 104.0, 150.0, 1e3)
STABILITY = {case["case"]: case for case in FILE["stability_float32"]}
NAMES = [full for name in names("defence") for full in [name, *presets("defence", name)]]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("gairat", {"function": "discrete", "variant": "paper"}),
    ("mail", {"base": "at", "normalise": "batch"}),
    ("mail", {"base": "trades", "normalise": "batch"}),
    ("mail", {"base": "mart", "normalise": "batch", "sp": "both"}),
    ("mart", {"sp": "both", "logits": "cosine"}),
    ("spat", {"sp": "none", "logits": "raw"}),
    ("spat", {"sp": "both", "logits": "raw"}),
    ("spat", {"sp": "robustness"}),
    ("trades", {"detach_target": True}),
]
KINDS = [(name, {}) for name in NAMES] + OTHERS


def patterns(gap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sure and right then sure and wrong; sure twice; wrong twice; a tie; sure and then unsure."""
    zeros = [0.0] * 7
    clean = [[gap, 0, 0], [gap, 1, 0], [0, gap, 0], [gap, gap, 0], [gap, 0, 0]]
    adv = [[0, gap - 10, 0], [gap - 2, 2, 0], [0, 1, gap], [0, gap, gap], [1, 0, 1]]
    rows = [torch.tensor([[*row, *zeros] for row in side]).double() for side in (clean, adv)]
    return rows[0], rows[1], torch.zeros(5, dtype=torch.int64)


def loss_and_gradients(
    built: Any, clean: Tensor, adv: Tensor, y: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    clean, adv = (side.to(dtype).requires_grad_() for side in (clean, adv))
    cosines = [(side / 1e4).detach().clamp(-1, 1) for side in (clean, adv)]
    kappa = torch.arange(len(y)) % 3
    per_example = built.terms(clean, adv, y, kappa=kappa, cosines=cosines).per_example
    grads = torch.autograd.grad(per_example.mean(), [clean, adv], allow_unused=True)
    return [per_example.detach(), *(g for g in grads if g is not None)]


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize(("name", "settings"), KINDS, ids=lambda v: v if isinstance(v, str) else "")
def test_large_gaps_are_finite_and_precise(name: str, settings: dict[str, Any], gap: float) -> None:
    built = build("defence", name, **settings)
    clean, adv, y = patterns(gap)
    single = loss_and_gradients(built, clean, adv, y, torch.float32)
    double = loss_and_gradients(built, clean, adv, y, torch.float64)
    for low, high in zip(single, double, strict=True):
        assert torch.isfinite(low).all()
        torch.testing.assert_close(low.double(), high, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["trades.gap150", "trades.gap30", "mart.gap150", "mart.gap30"])
def test_finite_where_the_official_float32_code_is_not(name: str) -> None:
    case = STABILITY[name]
    z, z_adv = (tensor(case[f"logits_{s}"], torch.float32).requires_grad_() for s in ("nat", "adv"))
    loss = build("defence", name.split(".")[0]).terms(z, z_adv, torch.tensor(case["labels"])).loss
    known = case["reference_float64_loss"] or case["official_float32_loss"]
    assert loss.item() == pytest.approx(known, rel=1e-4, abs=1e-6)
    for gradient in torch.autograd.grad(loss, [z, z_adv]):
        assert torch.isfinite(gradient).all()
