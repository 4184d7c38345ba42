"""Defences against what they must equal: each other in special cases, slow twins, closed forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spat.attacks.pgd import PGD
from spat.catalog import build
from spat.defences._base import Defence, Progress
from spat.defences._self_paced import head_cosines
from spat.losses import boosted_ce, log_rest
from spat.models import CosineHead
from spat.rng import generator

CLASSES, N = 5, 8


def made(name: str, **settings: Any) -> Any:
    return build("defence", name, **settings)


def outputs(spread: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    source = generator(seed)
    clean = spread * torch.randn(N, CLASSES, generator=source, dtype=torch.float64)
    adv = clean + torch.randn(N, CLASSES, generator=source, dtype=torch.float64)
    return clean, adv, torch.randint(CLASSES, (N,), generator=source)


def value_and_gradients(built: Defence, *given: Tensor, **context: Any) -> list[Tensor]:
    clean, adv, y = given
    leaves = [side.clone().requires_grad_() for side in (clean, adv)]
    terms = built.terms(*leaves, y, **context)
    found = torch.autograd.grad(terms.loss, leaves, allow_unused=True)
    return [terms.per_example.detach(), *(g for g in found if g is not None)]


def assert_same(left: list[Tensor], right: list[Tensor], rtol: float = 1e-12) -> None:
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=1e-14)


def linear_net(seed: int = 0, head: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), head(6, CLASSES)).double()


def images(seed: int = 0) -> tuple[Tensor, Tensor]:
    source = generator(seed, "images")
    x = torch.rand(N, 3, 2, 2, generator=source, dtype=torch.float64)
    return x, torch.randint(CLASSES, (N,), generator=source)


# Identities between defences


def test_spat_without_self_pacing_and_cosines_is_trades() -> None:
    """Bit for bit: values, both gradients, and the inner attack."""
    stripped, trades = made("spat", sp="none", logits="raw", weight=4.0), made("trades", weight=4.0)
    given = outputs()
    for one, other in zip(
        value_and_gradients(stripped, *given), value_and_gradients(trades, *given), strict=True
    ):
        assert torch.equal(one, other)
    net, (x, y) = linear_net(), images()
    ours, theirs = stripped.craft(net, x, y, rng=1).x_adv, trades.craft(net, x, y, rng=1).x_adv
    assert torch.equal(ours, theirs)
    assert torch.equal(stripped.objective(net, x, y).loss, trades.objective(net, x, y).loss)


def test_trades_with_both_self_paced_terms_on_cosines_is_spat() -> None:
    whole, spat = made("trades", sp="both", logits="cosine"), made("spat")
    given = [side.tanh() if side.is_floating_point() else side for side in outputs()]
    for one, other in zip(
        value_and_gradients(whole, *given), value_and_gradients(spat, *given), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("logits", ["raw", "cosine"])
@pytest.mark.parametrize("sp", ["none", "accuracy", "robustness", "both"])
def test_ablation_rows_of_spat_are_their_formulas(sp: str, logits: str) -> None:
    """A literal second implementation of all eight combinations."""
    built = made("spat", sp=sp, logits=logits, scale=7.0, alpha=0.3, beta=0.1, weight=2.0)
    clean, adv, y = outputs()
    c, c_adv = clean.tanh(), adv.tanh()
    z, z_adv = (7 * c, 7 * c_adv) if logits == "cosine" else (clean, adv)
    out, out_adv = (c, c_adv) if logits == "cosine" else (clean, adv)
    gain = torch.ones_like(z)
    if sp in ("accuracy", "both"):
        gain = c + 0.1
        for i, label in enumerate(y.tolist()):
            gain[i, label] = 1 - c[i, label] + 0.1
    accuracy = -torch.log(torch.softmax(gain * z, 1))[range(N), y]
    p, q = z.softmax(1), z_adv.softmax(1)
    t = p * torch.log(p / q)
    robust = 0.3 * t.sum(1) + (t**2).sum(1) if sp in ("robustness", "both") else t.sum(1)
    terms = built.terms(out, out_adv, y, cosines=[c, c_adv])
    torch.testing.assert_close(terms.per_example, accuracy + 2 * robust, rtol=1e-11, atol=1e-12)
    assert built.head == ("cosine" if logits == "cosine" else "linear")


def test_gairat_with_an_infinite_shift_is_madry() -> None:
    kappa = torch.arange(N)
    built = made("gairat", shift=float("inf"))
    assert_same(
        value_and_gradients(built, *outputs(), kappa=kappa),
        value_and_gradients(made("madry"), *outputs()),
    )


def test_gairat_before_begin_epoch_is_madry() -> None:
    built, kappa = made("gairat", begin_epoch=3), torch.arange(N)
    madry = value_and_gradients(made("madry"), *outputs())
    early = value_and_gradients(built, *outputs(), kappa=kappa, progress=Progress(2, 9))
    late = value_and_gradients(built, *outputs(), kappa=kappa, progress=Progress(3, 9))
    assert_same(early, madry)
    assert (late[0] - madry[0]).abs().max() > 0.1


def test_gairat_weights_fall_with_kappa_and_average_to_one() -> None:
    for function in ("tanh", "sigmoid", "discrete"):
        for variant in ("official", "paper"):
            built = made("gairat", function=function, variant=variant, steps=7)
            weights = built.weights(torch.arange(8))
            assert (weights.diff() < 0).all()
            assert weights.mean().item() == pytest.approx(1, rel=1e-12)


def test_gairat_paper_variant_differs_for_odd_k_only() -> None:
    for steps, same in ((10, True), (7, False)):
        kappa = torch.arange(steps + 1)
        one, other = (
            made("gairat", steps=steps, variant=variant).weights(kappa)
            for variant in ("official", "paper")
        )
        assert torch.allclose(one, other, rtol=1e-12) is same


def test_gairat_counts_the_steps_that_start_correct() -> None:
    """The random start counts and the last iterate does not; a flip back counts again."""
    net, (x, y) = linear_net(), images()
    built = made("gairat", **{"attack.eps": 0.3, "attack.step_size": 0.1}, steps=6)
    y = net(x).argmax(1)
    noise = torch.zeros_like(x)
    kappa = built.craft(net, x, y, noise=noise).seen["kappa"]
    counted = torch.zeros_like(y)
    for k in range(6):
        x_k = replace(built.attack, steps=k).craft(net, x, y, noise=noise)
        counted += net(x_k).argmax(1) == y
    assert torch.equal(kappa, counted)
    assert 1 <= kappa.min() < kappa.max() <= 6


def test_gairat_steps_have_one_source() -> None:
    assert made("gairat").inner.steps == 10
    assert made("gairat", steps=7).inner.steps == 7
    assert made("gairat", **{"attack.steps": 5}).inner.steps == 5


def test_mail_with_slope_zero_is_a_multiple_of_madry() -> None:
    madry = value_and_gradients(made("madry"), *outputs())
    for normalise, factor in (("x3", 1.5), ("batch", 1.0)):
        built = made("mail-at", slope=0.0, normalise=normalise)
        assert_same(value_and_gradients(built, *outputs()), [factor * v for v in madry])


@pytest.mark.parametrize(
    ("base", "plain"), [("at", "madry"), ("trades", "trades"), ("mart", "mart")]
)
def test_mail_in_its_burn_in_is_its_base(base: str, plain: str) -> None:
    weight = {} if base == "at" else {"weight": 5.0}
    built, other = made(f"mail-{base}", burn_in=4), made(plain, **weight)
    assert built.passes == other.passes
    burning = value_and_gradients(built, *outputs(), progress=Progress(4, 9))
    assert_same(burning, value_and_gradients(other, *outputs()))
    after = value_and_gradients(built, *outputs(), progress=Progress(5, 9))
    assert (after[0] - burning[0]).abs().max() > 1e-2


def test_mail_weighs_the_terms_its_base_says() -> None:
    clean, adv, y = outputs()
    for base in ("at", "trades", "mart"):
        built = made("mail", base=base, slope=3.0, bias=0.1, weight=2.0)
        terms = built.terms(clean, adv, y)
        w, accuracy = terms["weight"], terms["accuracy"]
        robust = terms.named.get("robustness", torch.zeros(()))
        weighted = (accuracy, w * robust) if base == "trades" else (w * accuracy, robust)
        torch.testing.assert_close(terms.per_example, weighted[0] + 2 * weighted[1])


def test_mail_batch_weights_survive_underflow() -> None:
    built = made("mail-at", slope=1e4, normalise="batch")
    _, adv, y = outputs(9.0)
    weights = built.weights(adv.float(), y)
    assert torch.isfinite(weights).all()
    assert weights.mean().item() == pytest.approx(1, rel=1e-5)


def test_mart_vanishes_on_certain_and_correct_predictions() -> None:
    z = torch.zeros(N, CLASSES, dtype=torch.float64)
    z[:, 2] = 500.0
    y = torch.full((N,), 2)
    assert made("mart", variant="paper").terms(z, z, y).loss.item() == 0
    assert made("mart").terms(z, z, y).loss.item() == pytest.approx(-1e-4, rel=1e-3)


def test_mart_ties_have_one_answer() -> None:
    """Every class equal, as with a zero head: the first of the others is the rival."""
    z = torch.zeros(4, CLASSES, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 3])
    (first,) = torch.autograd.grad(boosted_ce(z, y).sum(), z)
    (again,) = torch.autograd.grad(boosted_ce(z, y).sum(), z)
    assert torch.equal(first, again)
    assert first.argmax(1).tolist() == [1, 0, 0, 0]


def test_log_rest_is_exact_where_the_probability_rounds_to_one() -> None:
    z = torch.tensor([[200.0, 0.0, 0.0], [0.0, 1.0, 2.0]])
    found = log_rest(z, torch.tensor([0, 2]))
    p = z[1].double().softmax(0)
    assert found[0].item() == pytest.approx(-200 + torch.log(torch.tensor(2.0)).item())
    assert found[1].item() == pytest.approx(torch.log(p[0] + p[1]).item(), rel=1e-6)


def test_alp_interpolates_cross_entropies_and_pairs_logits() -> None:
    clean, adv, y = outputs()
    mean, summed = (
        made("alp", weight=2.0, clean_ce_weight=0.25, pairing_reduction=r).terms(clean, adv, y)
        for r in ("mean", "sum")
    )
    torch.testing.assert_close(summed["pairing"], CLASSES * mean["pairing"])
    ce = [F.cross_entropy(z, y, reduction="none") for z in (clean, adv)]
    torch.testing.assert_close(mean["accuracy"], 0.25 * ce[0] + 0.75 * ce[1])


def test_alp_smooths_labels_over_all_classes() -> None:
    clean, adv, y = outputs()
    target = 0.9 * F.one_hot(y, CLASSES) + 0.1 / CLASSES
    expected = -0.5 * sum((target * z.log_softmax(1)).sum(1) for z in (clean, adv))
    found = made("alp", label_smoothing=0.1).terms(clean, adv, y)["accuracy"]
    torch.testing.assert_close(found, expected)


def test_detached_gains_change_only_the_gradient() -> None:
    given = [side.tanh() if side.is_floating_point() else side for side in outputs()]
    free, detached = (
        value_and_gradients(made("spat", detach_gains=flag), *given) for flag in (False, True)
    )
    assert torch.equal(free[0], detached[0])
    assert (free[1] - detached[1]).abs().max() > 1e-2
    assert torch.equal(free[2], detached[2])


def test_scaling_features_leaves_the_loss_of_spat_unchanged() -> None:
    head = CosineHead(6, CLASSES).double()
    features, y = torch.randn(N, 6, generator=generator(1), dtype=torch.float64), outputs()[2]
    losses = [made("spat").terms(head(k * features), head(features), y).loss for k in (1, 1e3)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)


def test_the_clean_pass_comes_first() -> None:
    """BatchNorm's statistics weigh the last pass most."""
    net, (x, y) = linear_net(), images()
    built, seen = made("trades"), []
    crafted = built.craft(net, x, y, rng=1)
    net.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    built.respond(net, x, y, crafted)
    assert seen[0] is x
    assert seen[1] is crafted.x_adv


# Self-paced parts in other defences


@pytest.mark.parametrize("name", ["trades", "mart", "mail-at", "mail-trades", "mail-mart"])
@pytest.mark.parametrize("sp", ["accuracy", "robustness", "both"])
@pytest.mark.parametrize("logits", ["raw", "cosine"])
def test_self_paced_parts_compose(name: str, sp: str, logits: str) -> None:
    if name == "mail-at" and sp != "accuracy":
        return
    built, plain = made(name, sp=sp, logits=logits), made(name, logits=logits)
    net, (x, y) = linear_net(head=CosineHead if logits == "cosine" else nn.Linear), images()
    crafted = built.craft(net, x, y, rng=1)
    terms, other = built.respond(net, x, y, crafted), plain.respond(net, x, y, crafted)
    accuracy_differs = not torch.equal(terms["accuracy"], other["accuracy"])
    assert accuracy_differs == (sp in ("accuracy", "both"))
    if "robustness" in terms.named:
        robustness_differs = not torch.equal(terms["robustness"], other["robustness"])
        assert robustness_differs == (sp in ("robustness", "both"))
    terms.loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_gains_on_raw_logits_come_from_the_cosines_of_the_pass_they_weigh() -> None:
    net, (x, y) = linear_net(), images()
    x_adv = (x + 0.1).clamp(max=1)
    with head_cosines(net) as cosines:
        clean, adv = net(x), net(x_adv)
    h = net[:3](x)
    expected = F.cosine_similarity(h[:, None], net[3].weight[None], dim=2)
    torch.testing.assert_close(cosines[0], expected)
    trades = made("trades", sp="accuracy").terms(clean, adv, y, cosines=cosines)
    mart = made("mart", sp="accuracy", variant="paper").terms(clean, adv, y, cosines=cosines)
    gains = [made("spat").gains(c, y) for c in cosines]
    torch.testing.assert_close(
        trades["accuracy"], F.cross_entropy(gains[0] * clean, y, reduction="none")
    )
    torch.testing.assert_close(mart["accuracy"], boosted_ce(gains[1] * adv, y))
    assert not net[3]._forward_hooks


def test_inner_attacks_see_the_scale_of_cosines() -> None:
    """Cross entropy of cosines at scale 1 is another, weaker attack."""
    net, (x, y) = linear_net(head=CosineHead), images()
    built = made("mart", logits="cosine", scale=9.0, **{"attack.norm": "l2", "attack.eps": 0.5})
    scaled = replace(built.attack, loss_scale=9.0).craft(net, x, y, rng=3)
    bare = built.attack.craft(net, x, y, rng=3)
    assert torch.equal(built.craft(net, x, y, rng=3).x_adv, scaled)
    assert not torch.equal(scaled, bare)


def test_the_inner_loss_is_the_divergence_that_training_minimises() -> None:
    clean, adv, y = outputs()
    for name in ("trades", "spat", "mail-trades"):
        built = made(name)
        loss = built.inner_loss()(adv, y, clean)
        named = built.terms(clean, adv, y)["robustness"]
        torch.testing.assert_close(loss, named)


# Fast training


def test_fgsm_rs_takes_one_step_of_a_quarter_more_than_eps() -> None:
    net, (x, y) = linear_net(), images()
    built, noise = made("fgsm-rs"), torch.full_like(x, 1 / 255)
    x_0 = (x + noise).clamp(0, 1).requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(net(x_0), y), x_0)
    eps = 8 / 255
    expected = torch.clamp((x_0 + 1.25 * eps * g.sign()).clamp(x - eps, x + eps), 0, 1)
    torch.testing.assert_close(built.craft(net, x, y, noise=noise).x_adv, expected.detach())
    assert made("fgsm-rs", **{"attack.eps": 0.2}).inner.step_size == pytest.approx(0.25)
    assert made("fgsm-rs", **{"attack.step_size": 0.1}).inner.step_size == 0.1


def test_n_fgsm_leaves_the_ball_but_not_the_pixel_box() -> None:
    net, (x, y) = linear_net(), images()
    built, eps = made("n-fgsm"), 8 / 255
    noise = torch.full_like(x, 2 * eps)
    x_0 = (x + noise).clamp(0, 1).requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(net(x_0), y), x_0)
    expected = (x_0 + eps * g.sign()).clamp(0, 1).detach()
    torch.testing.assert_close(built.craft(net, x, y, noise=noise).x_adv, expected)
    assert made("n-fgsm", **{"attack.eps": 0.6}).craft(net, x, y, rng=1).x_adv.max() <= 1


def test_n_fgsm_draws_its_noise_from_twice_the_ball() -> None:
    downhill = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    with torch.no_grad():
        downhill[1].weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 12))
    x, eps = torch.full((64, 3, 2, 2), 0.5, dtype=torch.float64), 8 / 255
    y = torch.zeros(64, dtype=torch.int64)  # every pixel's gradient is positive
    noise = made("n-fgsm").craft(downhill, x, y, rng=1).x_adv - x - eps
    assert 1.9 * eps < noise.abs().max() <= 2 * eps + 1e-9
    assert noise.mean().abs() < 0.2 * eps


# SEAT


def test_the_average_of_a_constant_is_that_constant() -> None:
    average = 3.0
    for step in range(20):
        decay = made("seat").ema_decay(step)
        average = decay * average + (1 - decay) * 3.0
    assert average == pytest.approx(3.0, rel=1e-14)
    assert made("madry").ema_decay(5) is None


def test_a_whole_attack_can_be_given() -> None:
    attack = PGD(eps=0.1, steps=2, step_size=0.05, start="normal")
    assert made("spat", attack=attack).inner == attack
