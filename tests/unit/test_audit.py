"""Twelve broken defences are found out, each for its own reason; four honest models are not."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

import planted
import spat
from spat import catalog
from spat.findings import Audit

COSTLY = ("autoattack", "square", "transfer")
QUICK = [name for name in catalog.names("doubt") if name not in COSTLY]
HONEST = ("undefended", "adversarially trained", "cosine head", "residual")
REASONS = {
    "logits x 1000": ("gradient", "red", "the softmax is saturated, as the logits are too large"),
    "logits / 1000": ("logit-scale", None, "the logits are so small that the softmax is flat"),
    "cosine head at scale 1": ("logit-scale", None, "so small that the softmax is flat"),
    "sign": ("gradient", "red", "zero for 100% of the examples, though noise changes the logits"),
    "8-bit rounding": ("gradient", "red", "though noise changes the logits: something flat"),
    "random noise": ("randomness", None, "the output is random, also in eval mode"),
    "random crop": ("randomness", "red", "the output is random, also in eval mode"),
    "softmax": ("probabilities", "red", "the model returns probabilities, not logits"),
    "dropout": ("randomness", None, "the output is random, also in eval mode"),
    "detached": ("gradient", "red", "the model cuts the graph between image and logits"),
    "sigmoid": ("gradient", "red", "though noise changes the logits: something flat"),
    "dead relu": ("gradient", "red", "though noise changes the logits: something flat"),
}


@pytest.fixture(scope="session")
def honest() -> dict[str, nn.Module]:
    return planted.honest()


@pytest.fixture(scope="session")
def images() -> tuple[Tensor, Tensor]:
    x, y = spat.data("mnist-mini").test[:64].floats()
    return x, y


def audited(model: nn.Module, images: tuple[Tensor, Tensor], doubts: list[str]) -> Audit:
    return spat.audit(model, *images, eps=planted.EPS, doubts=doubts)


@pytest.mark.parametrize("name", REASONS)
def test_a_broken_defence_is_flagged_for_its_reason(
    name: str, honest: dict[str, nn.Module], images: tuple[Tensor, Tensor]
) -> None:
    doubt, level, reason = REASONS[name]
    found = audited(planted.broken(honest)[name], images, QUICK)
    assert found[doubt].level in ((level,) if level else ("amber", "red"))
    assert reason in found[doubt].reason
    assert found[doubt] in found.flagged
    assert found[doubt].advice


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_model_is_not_flagged(
    name: str, honest: dict[str, nn.Module], images: tuple[Tensor, Tensor]
) -> None:
    """Neither one that the attack breaks nor one that withstands it."""
    found = audited(honest[name], images, QUICK)
    assert [one.flag for one in found.flagged] == []
    assert found.verdict == "the robustness looks real"
    assert [one.doubt for one in found.findings] == QUICK
    assert found.clean > 48
    assert (found.held < 24) == (name in ("undefended", "residual"))


WITH_STRONGER_ATTACKS = {
    "detached": {"gradient", "square"},
    "logits / 1000": {"logit-scale", "autoattack"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*HONEST, *WITH_STRONGER_ATTACKS])
def test_all_doubts_together(
    name: str, honest: dict[str, nn.Module], images: tuple[Tensor, Tensor]
) -> None:
    """With the costly ones: a stronger attack finds more only where something is wrong."""
    model = honest[name] if name in HONEST else planted.broken(honest)[name]
    found = audited(model, images, catalog.names("doubt"))
    flagged = {one.doubt for one in found.flagged}
    assert flagged == set() if name in HONEST else flagged >= WITH_STRONGER_ATTACKS[name]
    assert found["logit-scale"].numbers["scales"] == [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
