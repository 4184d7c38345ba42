"""Inner attacks end to end: the authors' codes run on a fixed small network with injected noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from golden.vectors import CASES, inputs, starting, tensor
from spat.catalog import build
from spat.defences._base import Defence

START = 1e-3  # the vectors hold standard normal noise, which the codes scale by this


class Net(nn.Module):
    """h = tanh(W1 x + b1); logits W2 h + b2, or unit(W2) unit(h) + b2 for SPAT."""

    def __init__(self, given: dict[str, Tensor], cosine: bool) -> None:
        super().__init__()
        self.given, self.cosine = given, cosine

    def forward(self, x: Tensor) -> Tensor:
        g = self.given
        h = torch.tanh(x @ g["W1"].T + g["b1"])
        if self.cosine:
            return normalize(h) @ normalize(g["W2"]).T + g["b2"]
        return h @ g["W2"].T + g["b2"]


def defence(name: str, given: dict[str, Any]) -> Defence:
    kind = name.split(".")[1].split("_")[0]
    words: dict[str, Any] = {"weight": given["beta"]} if "beta" in given else {}
    if kind == "mail":
        words |= {"base": given["method"][5:], "slope": given["slope"], "bias": given["bias"]}
    if kind == "spat":
        words |= {"scale": float(given["s"]), "alpha": given["n"], "beta": given["m"]}
    attack = {"attack.eps": given["epsilon"], "attack.step_size": given["step_size"]}
    steps = {"steps": given["K"]} if "K" in given else {"attack.steps": given["perturb_steps"]}
    return build("defence", kind, **words, **attack, **steps)


@pytest.mark.parametrize("name", starting("inner."))
def test_inner_attack_end_to_end(name: str) -> None:
    given, expected = inputs(CASES[name]), CASES[name]["expected"]
    built, x, y = defence(name, given), given["x"], given["labels"]
    net = Net(given, cosine="spat" in name)
    noise = given["uniform_init"] if "uniform_init" in given else START * given["noise"]
    crafted = built.craft(net, x, y, noise=noise)
    assert crafted.x_adv is not None
    terms = built.respond(net, x, y, crafted)
    found = {
        "x_adv": crafted.x_adv,
        "delta_linf": (crafted.x_adv - x).abs().amax(1),
        "kappa": crafted.seen.get("kappa"),
        "total_loss": terms.loss,
        "final_prediction": net(crafted.x_adv).argmax(1),
    }
    for key, value in expected.items():
        actual = torch.as_tensor(found[key]).double()
        torch.testing.assert_close(actual, tensor(value), rtol=1e-8, atol=1e-9)
