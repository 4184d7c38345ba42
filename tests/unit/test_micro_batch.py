"""A batch in parts is the whole batch: the same losses and weights, up to rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spat
from spat.attacks.pgd import PGD
from spat.config import Training
from spat.defences._base import Defence, Progress, Terms
from spat.defences.madry import Madry
from spat.errors import UserError
from spat.losses import ce
from spat.models import CosineHead
from spat.rng import generator
from spat.training.batches import alone
from spat.training.engine import Engine, sgd
from spat.training.loop import Trainer
from spat.training.state import State
from toys import equal, states, trainer

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "spat": ("spat", {}),
    "sp-ce": ("spat", {"logits": "raw"}),
    "natural": ("natural", {}),
    "madry": ("madry", {}),
    "alp": ("alp", {}),
    "trades": ("trades", {}),
    "mart": ("mart", {}),
    "gairat": ("gairat", {"begin_epoch": 1}),
    "mail-at": ("mail-at", {"normalise": "batch", "burn_in": 0}),
    "mail-trades": ("mail-trades", {"normalise": "batch", "burn_in": 0}),
    "mail-mart": ("mail-mart", {"burn_in": 0}),
    "seat": ("seat", {}),
    "awp-trades": ("awp-trades", {"gamma": 0.1}),
    "awp-gairat": ("awp", {"base": "gairat", "gamma": 0.1}),
    "awp-mail": ("awp", {"base": "mail-at", "gamma": 0.1}),
    "free": ("free", {}),
    "fgsm-rs": ("fgsm-rs", {}),
    "n-fgsm": ("n-fgsm", {}),
}
SIZES = (13, 11, 13)  # of the batches: Free's perturbation meets a shorter one


def plain(defence: Defence) -> nn.Module:
    """Without BatchNorm; dropout twice, once on maps that lie channels-last."""
    head = CosineHead if defence.head == "cosine" else nn.Linear
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1),
            nn.Tanh(),  # smooth: rounding never decides the sign of a gradient
            nn.Dropout2d(0.2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            head(32, 4),
        ).double()


def batch(n: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = generator(seed)
    x = torch.rand(n, 2, 8, 8, generator=rng, dtype=torch.float64)
    return x, torch.randint(0, 4, (n,), generator=rng)


def curve(defence: Defence, micro_batch: int | None) -> tuple[list[dict[str, float]], State]:
    model = plain(defence)
    state = State(model, sgd(model, lr=0.1))
    engine = Engine(state, precision="float32", micro_batch=micro_batch)
    means = []
    for step, n in enumerate(SIZES):
        for _ in range(2):
            found = engine.update(
                defence, alone(*batch(n, step)), seed=3, step=step, lr=0.1,
                progress=Progress(2, 200, step, 1000),
            )  # fmt: skip
            means.append(dict(found))
    return means, state


@pytest.mark.parametrize(
    ("case", "micro_batch"), [*((case, 5) for case in CASES), ("awp-mail", 1), ("free", 1)]
)
def test_parts_train_as_the_whole_batch_does(case: str, micro_batch: int) -> None:
    """Catches: parts weighed alike (13 is 5, 4 and 4), noise or masks of the part, weights that
    average to 1 over the part, AWP's direction or Free's perturbation from one part.
    """
    name, own = CASES[case]
    built = spat.defence(name, **own)
    defence = replace(built, attack=replace(built.attack, steps=min(built.attack.steps, 3)))
    means, state = curve(defence, None)
    parts, other = curve(defence, micro_batch)
    for one, two in zip(means, parts, strict=True):
        assert two == pytest.approx(one, abs=1e-10)
    for key, value in state.tensors().items():
        torch.testing.assert_close(other.tensors()[key], value, rtol=0, atol=1e-10)
    assert means[0] != means[1]


def test_a_defence_may_ask_for_any_sum_over_the_batch() -> None:
    """A defence of one's own, which asks three times and draws random numbers in between."""

    @dataclass(frozen=True, kw_only=True)
    class Asks(Madry):
        def terms(self, clean: Any, adv: Tensor, labels: Tensor, **context: Any) -> Terms:
            world, loss = context["world"], ce(adv, labels)
            drawn = torch.rand(3).to(adv)  # before and after a question: the same numbers
            with torch.no_grad():
                middle = world.mean(adv) + world.total(adv.sum(0)) / 13 * drawn[0]
                later = torch.rand(4).to(adv)
            return Terms(loss + ((adv - middle).square() * later).sum(1) / world.largest(loss))

    defence = Asks(attack=PGD(steps=2, step_size=2 / 255))
    means, state = curve(defence, None)
    parts, other = curve(defence, 5)
    for one, two in zip(means, parts, strict=True):
        assert two == pytest.approx(one, abs=1e-10)
    for key, value in state.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[key], value, rtol=0, atol=1e-10)


def test_batchnorm_sees_the_parts_and_moves_once() -> None:
    subject = trainer(batch_size=16, micro_batch=8, precision="float32")
    before, seen = states(subject.model), list[Tensor]()
    subject.model.bn1.register_forward_hook(lambda _, given, __: seen.append(given[0].detach()))
    list(subject._train_one())  # 13 images; the attack sees a copy of the model
    assert [len(z) for z in seen] == [7, 6]
    mean = sum(len(z) / 13 * z.mean((0, 2, 3)) for z in seen)
    after = subject.model.state_dict()
    moved = 0.9 * before["bn1.running_mean"] + 0.1 * mean
    torch.testing.assert_close(after["bn1.running_mean"], moved)
    assert after["bn1.num_batches_tracked"] == before["bn1.num_batches_tracked"] + 1


def notes(subject: Trainer) -> list[str]:
    return [e.values["text"] for e in subject.run(lambda: True) if e.kind == "note"]


def test_a_run_says_what_batchnorm_sees() -> None:
    (text,) = notes(trainer(batch_size=16, micro_batch=8))
    assert text == (
        "BatchNorm sees parts of at most 8 images, not the whole batch of 16: as when training "
        "with batches of that size; all else is the same."
    )
    assert notes(trainer(batch_size=16)) == notes(trainer(batch_size=16, micro_batch=16)) == []


def test_a_run_in_parts_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole = trainer(micro_batch=5)
    list(whole.run())
    first = trainer(tmp_path, micro_batch=5)
    list(first.run(lambda: first.counters.step == 3))
    again = trainer(tmp_path, micro_batch=5)
    again.resume()
    list(again.run())
    assert equal(states(again.model), states(whole.model))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"micro_batch": 0}, "micro_batch must be 1 or more, got 0."),
        ({"micro_batch": -4}, "micro_batch must be 1 or more, got -4."),
        ({"micro_batch": 65}, "micro_batch must be at most batch_size (64), got 65."),
        ({"batch_size": "atuo"}, "batch_size must be a whole number or auto, got 'atuo'."),
        (
            {"batch_size": "auto", "micro_batch": 8},
            "micro_batch 8 already bounds the memory of a step: give batch_size a number instead "
            "of auto.",
        ),
    ],
)
def test_sizes_that_cannot_be(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as caught:
        Training(**{"batch_size": 64, **given})
    assert str(caught.value) == text
