"""What must hold of every architecture, and of a user's own; a new file enters by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from spat import catalog
from spat.errors import UserError
from spat.models import build_model, cosine_heads

NAMES = [
    full for name in catalog.names("model") for full in [name, *catalog.presets("model", name)]
]
CLASSES = 5


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["linear", "cosine"])
def head(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def small(name: str, **given: Any) -> nn.Module:
    """The architecture as narrow as it goes, so that deep ones cost little."""
    known = {setting.name for setting in catalog.settings("model", name)}
    narrow = {"width": 0.05} if "width" in known else {}
    return build_model(name, classes=CLASSES, channels=2, **narrow, **given)


def images(n: int) -> Tensor:
    return torch.rand(n, 2, 28, 28, generator=torch.Generator().manual_seed(0))


def weighted(logits: Tensor) -> Tensor:
    """A number to differentiate that no symmetry between classes or images cancels."""
    return (logits * torch.arange(1.0, logits.numel() + 1).reshape(logits.shape)).sum()


def nudge(model: nn.Module) -> None:
    """Away from parameters that start at zero, which stop gradients at the first step."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if not p.any():
                p.add_(0.1 * torch.randn(p.shape, generator=draw))


def test_logits_are_finite_and_have_a_row_an_image(name: str, head: str) -> None:
    model = small(name, head=head)
    for mode in (model.train(), model.eval()):
        logits = mode(images(2))
        assert logits.shape == (2, CLASSES)
        assert logits.dtype == torch.float32
        assert bool(logits.isfinite().all())


def test_gradient_reaches_every_parameter_and_the_images(name: str, head: str) -> None:
    model = small(name, head=head, head_bias=True).eval()
    nudge(model)
    x = images(2).requires_grad_()
    weighted(model(x)).backward()
    asleep = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert asleep == []
    assert x.grad is not None
    assert bool(x.grad.flatten(1).any(1).all())


def test_an_image_is_classified_the_same_alone(name: str, head: str) -> None:
    model = small(name, head=head).eval()
    nudge(model)
    x = images(3)
    alone = torch.cat([model(x[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(alone, model(x), rtol=1e-4, atol=1e-4)


def test_forward_in_eval_mode_changes_no_bit(name: str, head: str) -> None:
    model = small(name, head=head).eval()
    nudge(model)
    before = {key: (v.clone(), v.data_ptr()) for key, v in model.state_dict().items()}
    first = model(images(2))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key][0]), key
        assert value.data_ptr() == before[key][1], key
    assert torch.equal(model(images(2)), first)


def test_state_dict_goes_round(name: str, head: str) -> None:
    model, other = (small(name, head=head, seed=seed).eval() for seed in (0, 1))
    nudge(model)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other(images(2)), model(images(2)))


def test_functional_call_replaces_parameters(name: str, head: str) -> None:
    model, other = (small(name, head=head, seed=seed).eval() for seed in (0, 1))
    nudge(other)
    got = functional_call(model, dict(other.state_dict()), (images(2),))
    torch.testing.assert_close(got, other(images(2)))


def test_head_is_the_one_asked_for(name: str) -> None:
    assert cosine_heads(small(name, head="linear")) == []
    (head,) = cosine_heads(small(name, head="cosine", scale=7.0))
    assert (head.scale, head.bias, head.out_features) == (7.0, None, CLASSES)


def test_cosines_stay_cosines(name: str) -> None:
    model = small(name, head="cosine").eval()
    nudge(model)
    assert float(model(images(2)).detach().abs().max()) <= 1 + 1e-6


def test_component_is_described(name: str) -> None:
    component = catalog.find("model", name)
    assert component.summary.endswith(".")
    assert len(component.summary) <= 100
    known = catalog.settings("model", name)
    assert {"classes", "channels", "head", "head_bias", "scale"} <= {s.name for s in known}
    assert all(setting.help for setting in known)


OWN = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn
import beside_own

torch.rand(3)
SIZE = 4
ready = nn.Linear(2, 2)

@dataclass
class Options:
    classes: int

def build(classes, *, channels=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * SIZE * SIZE, Options(classes).classes))

class Net(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.settings = settings
        self.layer = nn.Linear(2, 2)

def nothing():
    return 3

def broken(classes):
    raise RuntimeError("the disk is full.\\nsecond line")

def silent():
    raise KeyError

def late(classes):
    import imported_late
    return nn.Linear(2, classes)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's module, as the current folder."""
    (tmp_path / "own_net.py").write_text(OWN)
    (tmp_path / "beside_own.py").write_text("")
    (tmp_path / "imported_late.py").write_text("")
    (tmp_path / "needs.py").write_text("import not_installed_anywhere")
    (tmp_path / "wrong.py").write_text("def build(:")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("own_net", "beside_own", "imported_late"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("where", ["own_net", "own_net.py", "./own_net.py"])
def test_own_model_gets_the_settings_it_accepts(own: Path, where: str) -> None:
    paths = list(sys.path)
    model = build_model(f"{where}:build", classes=5, channels=1, head="cosine")
    assert model(torch.rand(2, 1, 4, 4)).shape == (2, 5)
    assert build_model(f"{where}:Net", classes=5, scale=2.0).settings == {
        "classes": 5,
        "scale": 2.0,
    }
    assert build_model(f"{where}:late", classes=3).out_features == 3
    assert sys.path == paths


def test_own_file_is_found_from_elsewhere(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    assert isinstance(build_model(f"{own / 'own_net.py'}:build", classes=2), nn.Module)


def test_own_model_is_a_function_of_the_seed(own: Path) -> None:
    before = torch.random.get_rng_state()
    first, second, other = (build_model("own_net:build", classes=5, seed=s) for s in (1, 1, 2))
    assert torch.equal(first[1].weight, second[1].weight)
    assert not torch.equal(first[1].weight, other[1].weight)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("own_net:", "your own model is named package.module:factory or path/to/file.py:factory"),
        ("no_such_net:build", "cannot import no_such_net from {cwd}: ModuleNotFoundError: No mod"),
        ("no_such.py:build", "there is no file {cwd}/no_such.py to take a model from."),
        ("needs.py:build", "cannot import {cwd}/needs.py: ModuleNotFoundError: No module named"),
        ("wrong.py:build", "cannot import {cwd}/wrong.py: SyntaxError: invalid syntax"),
        (
            "own_net.py:biuld",
            "unknown factory in own_net.py 'biuld'. Did you mean 'build'? Known: Net, Options, ",
        ),
        ("own_net:SIZE", "own_net:SIZE must be a function or class that builds a model, got a va"),
        ("own_net:ready", "own_net:ready must be a function or class that builds a model, got a"),
        ("own_net:nothing", "own_net:nothing must return a torch.nn.Module, got a value of type"),
        ("own_net:broken", "own_net:broken raised RuntimeError: the disk is full."),
        ("own_net:silent", "own_net:silent raised KeyError."),
    ],
)
def test_own_model_fails_in_one_sentence(own: Path, path: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(path, classes=2)
    assert str(caught.value).startswith(sentence.format(cwd=own))
    assert "\n" not in str(caught.value)


def test_file_that_cannot_be_imported_is_forgotten(own: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(UserError):
        build_model("needs.py:build")
    assert not {name for name in set(sys.modules) - before if name.startswith("own_model_")}


def test_missing_settings_of_an_own_model_are_named(own: Path) -> None:
    with pytest.raises(UserError, match=r"own_net:build raised TypeError: .*'classes'"):
        build_model("own_net:build")
