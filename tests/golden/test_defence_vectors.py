"""Every defence's loss against numbers obtained by executing its authors' code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from golden.vectors import CASES, inputs, starting, tensor
from spat.catalog import build
from spat.defences._base import Defence, Progress, Terms
from spat.losses import margin, runner_up
from spat.models import CosineHead

SPAT_WORDS = {"scale": "s", "alpha": "n_alpha", "beta": "m_beta", "weight": "lambda_"}
LOSSES = starting("madry", "trades", "mart", "gairat.loss", "mail", "alp", "spat.full", "spat.rob")
ELSEWHERE = starting("he.", "corruption.", "spat.head.", "spat.sp_logits.c3.code_initial")


def defence(name: str, given: dict[str, Any]) -> Defence:
    """The defence, in words, that a case is about."""
    kind, weight = name.split(".")[0], {"weight": given["beta"]} if "beta" in given else {}
    if kind == "trades":
        return build("defence", kind, detach_target=name.endswith("detached_target"), **weight)
    if kind == "mart":
        return build("defence", kind, variant="paper" if "paper" in name else "official", **weight)
    if kind == "gairat":
        function = next((f for f in ("sigmoid", "discrete") if f in name), "tanh")
        return build("defence", kind, shift=given["lam"], steps=given["K"], function=function)
    if kind == "mail":
        words = {key: given[key] for key in ("slope", "bias") if key in given}
        normalise = "batch" if "normalised" in name else "x3"
        base = next(b for b in ("trades", "mart", "at") if f"mail_{b}" in name)
        return build("defence", kind, base=base, normalise=normalise, **words, **weight)
    if kind == "alp":
        variant = {"pairing_reduction": "sum", "clean_ce_weight": 0.0} if "l2sum" in name else {}
        return build("defence", kind, weight=given["weight"], **variant)
    if kind == "spat":
        words = {word: float(given[key]) for word, key in SPAT_WORDS.items() if key in given}
        return build("defence", kind, detach_gains=name.endswith(".detached"), **words)
    return build("defence", kind)


def computed(name: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Everything that the case expects, under its own keys."""
    given = inputs(CASES[name], dtype)
    built = defence(name, given)
    clean, adv = (_leaf(given, f"logits_{side}", f"cos_{side}") for side in ("nat", "adv"))
    context: dict[str, Any] = {"kappa": given["kappa"]} if "kappa" in given else {}
    if "burnin" in name:
        context["progress"] = Progress(epoch=76, epochs=120)
    if "spat.rob" in name:
        terms = _only_robustness(built, clean, adv)
    else:
        terms = built.terms(clean, adv, given["labels"], **context)
    found: dict[str, Any] = {"loss": terms.loss, "loss_rob": terms.loss, **_parts(built, terms)}
    for side, leaf in (("nat", clean), ("adv", adv)):
        if leaf is not None:
            grad = torch.autograd.grad(terms.loss, leaf, retain_graph=True, allow_unused=True)[0]
            grad = torch.zeros_like(leaf) if grad is None else grad
            found |= {f"grad_logits_{side}": grad, f"grad_cos_{side}": grad}
    if "m_beta" in given and adv is not None:
        found |= _of_gains(given, built)
    if "logits_adv" in given:
        found["second_class"] = runner_up(given["logits_adv"], given["labels"])
        found["pm"] = margin(given["logits_adv"].softmax(1), given["labels"])
    return found


def _leaf(given: dict[str, Any], *keys: str) -> Tensor | None:
    held = [given[key] for key in keys if key in given]
    return held[0].requires_grad_() if held else None


def _only_robustness(built: Any, clean: Tensor | None, adv: Tensor | None) -> Terms:
    assert clean is not None
    assert adv is not None
    t = built.log_ratios(clean, adv)
    return Terms(built.divergence(t), {"kl": t.sum(1), "inconsistency": t.square().sum(1)})


def _parts(built: Defence, terms: Terms) -> dict[str, Any]:
    """The named terms under the names of the vectors."""
    named = dict(terms.named)
    found = {
        "per_sample": terms.per_example,
        "weights": named.get("weight"),
        "weight_per_sample": named.get("unsure"),
        "bce_per_sample": named.get("accuracy"),
        "kl_per_sample": named.get("kl", named.get("robustness")),
        "linc_per_sample": named.get("inconsistency"),
        "mse": named["pairing"].mean() if "pairing" in named else None,
    }
    if "accuracy" in named:
        found |= {"ce_nat": named["accuracy"].mean(), "loss_acc": named["accuracy"].mean()}
    if "robustness" in named:
        found |= {"kl_mean": named["robustness"].mean()}
    if "inconsistency" in named and "robustness" in named:
        found |= {"loss_rob": named["robustness"].mean()}
    return found


def _of_gains(given: dict[str, Any], built: Any) -> dict[str, Any]:
    clean = given["cos_nat"]
    detached = build("defence", "spat", scale=built.scale, detach_gains=True)
    loss = detached.terms(clean, given["cos_adv"], given["labels"]).loss
    return {
        "gains": built.gains(clean, given["labels"]),
        "grad_cos_nat_gains_detached": torch.autograd.grad(loss, clean)[0],
    }


def compare(
    found: dict[str, Any], expected: dict[str, Any], rtol: float = 1e-9, atol: float = 1e-11
) -> None:
    for key, value in expected.items():
        assert found.get(key) is not None, f"nothing computes {key}"
        actual = torch.as_tensor(found[key]).detach().double()
        torch.testing.assert_close(
            actual, tensor(value), rtol=rtol, atol=atol, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_authors_numbers(name: str) -> None:
    case = CASES[name]
    compare(computed(name), case["expected"], case["rtol"], case["atol"])


@pytest.mark.parametrize("name", LOSSES)
def test_float32_equals_the_authors_numbers(name: str) -> None:
    found, expected = computed(name, torch.float32), CASES[name]["expected"]
    gradients = {key: value for key, value in expected.items() if key.startswith("grad")}
    values = {key: value for key, value in expected.items() if key not in gradients}
    compare(found, values, rtol=1e-5, atol=2e-7)
    compare(found, gradients, rtol=1e-4, atol=2e-7)


def is_smooth(name: str) -> bool:
    """Whether the whole loss has a gradient: no detached part, and not a part of a loss itself."""
    return not any(part in name for part in ("mail_", "detached_target", "spat.rob"))


@pytest.mark.parametrize("name", [name for name in LOSSES if is_smooth(name)])
def test_gradients_are_central_differences(name: str) -> None:
    given = inputs(CASES[name])
    built = defence(name, given)
    context = {"kappa": given["kappa"]} if "kappa" in given else {}
    sides = [_leaf(given, f"logits_{s}", f"cos_{s}") for s in ("nat", "adv")]
    present = tuple(side for side in sides if side is not None)

    def loss(*leaves: Tensor) -> Tensor:
        rest = iter(leaves)
        clean, adv = (None if side is None else next(rest) for side in sides)
        return built.terms(clean, adv, given["labels"], **context).loss

    assert torch.autograd.gradcheck(loss, present, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_detaching_the_target_changes_only_the_clean_gradient() -> None:
    right, wrong = "trades.c10.beta6", "trades.c10.beta6.detached_target"
    expected, other = CASES[right]["expected"], CASES[wrong]["expected"]
    found = computed(right)
    assert found["loss"].item() == pytest.approx(other["loss"], rel=1e-9)
    gap = (found["grad_logits_nat"] - tensor(other["grad_logits_nat"])).abs().max()
    assert gap > 1e-3
    assert expected["grad_logits_adv"] == other["grad_logits_adv"]


@pytest.mark.parametrize("name", starting("gairat.weights"))
def test_gairat_weights(name: str) -> None:
    given, expected = inputs(CASES[name]), CASES[name]["expected"]
    built: Any = defence(name, given)
    torch.testing.assert_close(
        built.weights(given["kappa"]), tensor(expected["weights"]), rtol=1e-9, atol=1e-11
    )
    if "weights_unnormalised" in expected:
        omega = built.log_omega(given["kappa"].double()).exp()
        torch.testing.assert_close(
            omega, tensor(expected["weights_unnormalised"]), rtol=1e-9, atol=1e-11
        )


SP_LOGITS = [name for name in starting("spat.sp_logits") if name not in ELSEWHERE]


@pytest.mark.parametrize("name", SP_LOGITS)
def test_self_paced_logits(name: str) -> None:
    given, expected = inputs(CASES[name]), CASES[name]["expected"]
    built: Any = defence(name, given)
    c = given["cos_nat"].requires_grad_()
    loss = built.accuracy(c, given["labels"]).mean()
    found = {
        "sp_logits": built.gained(c, given["labels"]),
        "loss_acc": loss,
        "grad_cos_nat": torch.autograd.grad(loss, c)[0],
    }
    compare(found, expected)


@pytest.mark.parametrize("name", starting("spat.from_features"))
def test_spat_through_the_cosine_head(name: str) -> None:
    given = inputs(CASES[name])
    built: Any = build(
        "defence", "spat", scale=given["s"], detach_gains="undetached" not in name, weight=6.0
    )
    biased = ".bias." in name
    head = CosineHead(*reversed(given["W_raw"].shape), bias=biased).double()
    with torch.no_grad():
        head.weight.copy_(given["W_raw"])
        if biased:
            head.bias.copy_(given["bias"])
    clean, adv = given["z_nat"].requires_grad_(), given["z_adv"].requires_grad_()
    c, c_adv = head(clean), head(adv)
    loss = built.terms(c, c_adv, given["labels"]).loss
    grads = torch.autograd.grad(loss, [head.weight, clean, adv])
    found = {"loss": loss, "cos_nat": c, "cos_adv": c_adv}
    found |= dict(zip(("grad_W", "grad_z_nat", "grad_z_adv"), grads, strict=True))
    compare(found, CASES[name]["expected"])


def test_spat_turning_points() -> None:
    """Where the undetached gains reverse the push, and the floor under the accuracy term."""
    given, expected = (CASES["spat.gain.turning_points"][k] for k in ("inputs", "expected"))
    for index, s in enumerate(given["s"]):
        built: Any = build("defence", "spat", scale=float(s), beta=given["m_beta"])
        c = torch.full((1, given["C"]), expected["c_false"], dtype=torch.float64)
        c[0, 0] = expected["c_true"]
        c.requires_grad_()
        y = torch.tensor([0])
        logits, loss = built.gained(c, y), built.accuracy(c, y).sum()
        assert logits[0, 0].item() == pytest.approx(expected["logit_true"][index], rel=1e-9)
        assert logits[0, 1].item() == pytest.approx(expected["logit_false"][index], rel=1e-9)
        assert loss.item() == pytest.approx(expected["loss_acc_floor"][index], rel=1e-9)
        assert torch.autograd.grad(loss, c)[0].abs().max() < 1e-12


def test_seat_decay_and_average() -> None:
    """The decay, and the average it makes of the authors' sequence of weights."""
    given, expected = (CASES["seat.ema.sequence"][k] for k in ("inputs", "expected"))
    seat: Defence = build("defence", "seat")
    average, buffer = given["w0"], given["buffer0"]
    for t, d in enumerate(expected["decay"]):
        decay = seat.ema_decay(t)
        assert decay == pytest.approx(d, rel=1e-12)
        assert decay is not None
        average = decay * average + (1 - decay) * given["w_after_step"][t]
        buffer = decay * buffer + (1 - decay) * given["buffer_after_step"][t]
        assert average == pytest.approx(expected["ema_w"][t], rel=1e-9)
        assert buffer == pytest.approx(expected["ema_buffer"][t], rel=1e-9)
    assert seat.ema_decay(8989) < seat.ema_decay(8990) == seat.ema_decay(10**6) == 0.999


def test_every_vector_of_a_defence_is_used() -> None:
    used = {
        *LOSSES,
        *ELSEWHERE,
        *starting("inner.", "seat.", "gairat.weights", "spat.sp_logits.c3"),
        *starting("spat.from_features", "spat.gain", "spat.ablation"),
    }
    assert set(CASES) - used == set()
