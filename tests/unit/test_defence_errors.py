"""Bad input to defences gets one sentence with the value and the way out."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from spat.catalog import build
from spat.errors import UserError


def made(name: str, **settings: Any) -> Any:
    return build("defence", name, **settings)


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("spat", {"scale": 0.0}, "scale of spat must be positive, got 0."),
    ("spat", {"weight": -1.0}, "weight of spat must be positive, got -1."),
    ("spat", {"scale": float("nan")}, "scale of spat must be positive, got nan."),
    ("spat", {"alpha": -0.1}, "alpha of spat must lie in [0, inf], got -0.1."),
    ("spat", {"sp": "all"}, "unknown sp of spat 'all'."),
    ("spat", {"logits": "cosin"}, "unknown logits of spat 'cosin'. Did you mean 'cosine'?"),
    ("trades", {"weight": 0.0}, "weight of trades must be positive, got 0."),
    ("mart", {"weight": float("inf")}, "weight of mart must be positive, got inf."),
    ("mart", {"variant": "papr"}, "unknown variant of mart 'papr'. Did you mean 'paper'?"),
    ("alp", {"weight": 0.0}, "weight of alp must be positive, got 0."),
    ("alp", {"pairing_reduction": "max"}, "unknown pairing_reduction of alp 'max'."),
    ("alp", {"clean_ce_weight": 2.0}, "clean_ce_weight of alp must lie in [0, 1], got 2."),
    ("mail", {"weight": 0.0}, "weight of mail must be positive, got 0."),
    ("mail", {"base": "trade"}, "unknown base of mail 'trade'. Did you mean 'trades'?"),
    ("mail", {"normalise": "x4"}, "unknown normalise of mail 'x4'. Did you mean 'x3'?"),
    ("mail", {"sp": "both"}, "mail with base='at' has no robustness term: sp must be none or"),
    ("gairat", {"steps": 1}, "needs at least 2 steps, got 1."),
    ("gairat", {"attack.steps": 1}, "needs at least 2 steps, got 1."),
    ("gairat", {"function": "tan"}, "unknown function of gairat 'tan'. Did you mean 'tanh'?"),
    ("gairat", {"begin_epoch": 0}, "begin_epoch of gairat must lie in [1, inf], got 0."),
    ("seat", {"max_decay": 1.0}, "max_decay of seat must lie in [0, 1), got 1."),
    ("fgsm-rs", {"step_ratio": 0.0}, "step_ratio of fgsm-rs must be positive, got 0."),
    ("n-fgsm", {"noise": -1.0}, "noise of n-fgsm must lie in [0, inf], got -1."),
    ("awp", {"gamma": 0.0}, "gamma of awp must be positive, got 0."),
    ("awp", {"base": "awp"}, "base of awp must be another defence, got 'awp'."),
    ("awp", {"base": "trade"}, "unknown defence 'trade'. Did you mean 'trades'?"),
    ("awp", {"base": "madry", "weight": 2.0}, "unknown setting of defence 'madry' 'weight'."),
]


@pytest.mark.parametrize(("name", "settings", "message"), CASES)
def test_bad_settings_are_refused_in_one_sentence(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        made(name, **settings)


@pytest.mark.parametrize("name", ["mart", "mail-at", "mail-trades", "mail-mart"])
def test_one_class_has_no_rival(name: str) -> None:
    one, y = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(UserError, match=r"needs at least 2 classes, got logits of shape \(3, 1\)"):
        made(name).terms(one, one, y)


def test_missing_context_is_named() -> None:
    clean = adv = torch.zeros(3, 4)
    y = torch.tensor([0, 1, 2])
    with pytest.raises(UserError, match="gairat needs kappa=, the counts"):
        made("gairat").terms(clean, adv, y)
    with pytest.raises(UserError, match="pass cosines= to terms, or set logits='cosine'"):
        made("trades", sp="both").terms(clean, adv, y)


def test_gains_on_raw_logits_need_a_linear_layer() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten())
    x, y = torch.zeros(2, 3, 2, 2), torch.tensor([0, 1])
    with pytest.raises(UserError, match=r"need a model that ends in nn\.Linear"):
        made("trades", sp="accuracy").objective(net, x, y)
