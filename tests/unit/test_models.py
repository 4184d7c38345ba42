"""Architectures against published counts, public key names and slow twins; building by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spat.errors import UserError
from spat.models import CosineHead, adapt_state, build_model

COUNTS = {
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "resnet101": 42_512_970,
    "preact-resnet18": 11_172_170,
    "wrn-34-10": 46_160_474,
    "wrn-28-10": 36_479_194,
    "small-cnn": 312_202,
    "lenet5": 61_706,
}
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
State = dict[str, Tensor]


def norm_keys(name: str) -> list[str]:
    return [f"{name}.{part}" for part in NORM]


def affine_keys(*names: str) -> list[str]:
    return [f"{name}.{part}" for name in names for part in ("weight", "bias")]


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count_is_the_published_one(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]


def resnet_keys(counts: tuple[int, ...], convolutions: int, first_projects: bool) -> list[str]:
    keys = ["conv1.weight", *norm_keys("bn1")]
    for stage, count in enumerate(counts, 1):
        for block in range(count):
            at = f"layer{stage}.{block}"
            for i in range(1, convolutions + 1):
                keys += [f"{at}.conv{i}.weight", *norm_keys(f"{at}.bn{i}")]
            if block == 0 and (stage > 1 or first_projects):
                keys += [f"{at}.shortcut.0.weight", *norm_keys(f"{at}.shortcut.1")]
    return [*keys, *affine_keys("linear")]


def preact_keys() -> list[str]:
    keys = ["conv1.weight"]
    for stage in range(1, 5):
        for block in range(2):
            at = f"layer{stage}.{block}"
            for i in (1, 2):
                keys += [*norm_keys(f"{at}.bn{i}"), f"{at}.conv{i}.weight"]
            if block == 0 and stage > 1:
                keys.append(f"{at}.shortcut.0.weight")
    return [*keys, *norm_keys("bn"), *affine_keys("linear")]


def wrn_keys(count: int) -> list[str]:
    keys = ["conv1.weight"]
    for stage in range(1, 4):
        for block in range(count):
            at = f"block{stage}.layer.{block}"
            for i in (1, 2):
                keys += [*norm_keys(f"{at}.bn{i}"), f"{at}.conv{i}.weight"]
            if block == 0:
                keys.append(f"{at}.convShortcut.weight")
    return [*keys, *norm_keys("bn1"), *affine_keys("fc")]


KEYS = {
    "resnet18": resnet_keys((2, 2, 2, 2), 2, False),
    "resnet34": resnet_keys((3, 4, 6, 3), 2, False),
    "resnet50": resnet_keys((3, 4, 6, 3), 3, True),
    "resnet101": resnet_keys((3, 4, 23, 3), 3, True),
    "preact-resnet18": preact_keys(),
    "wrn-34-10": wrn_keys(5),
    "small-cnn": affine_keys(
        *(f"feature_extractor.conv{i}" for i in range(1, 5)),
        *(f"classifier.fc{i}" for i in range(1, 4)),
    ),
    "lenet5": affine_keys("conv1", "conv2", "fc1", "fc2", "fc3"),
}


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("name", KEYS)
def test_state_dict_has_the_public_names_in_their_order(name: str, head: str) -> None:
    with torch.device("meta"):
        model = build_model(name, head=head, head_bias=True)
    assert list(model.state_dict()) == KEYS[name]


def test_small_cnn_parts_have_the_names_of_trades() -> None:
    model = build_model("small-cnn")
    features = "conv1 relu1 conv2 relu2 maxpool1 conv3 relu3 conv4 relu4 maxpool2"
    assert " ".join(dict(model.feature_extractor.named_children())) == features
    assert " ".join(dict(model.classifier.named_children())) == "fc1 relu1 drop fc2 relu2 fc3"


def roughened(model: nn.Module) -> nn.Module:
    """The model in eval mode, with no parameter or running statistic at its starting value."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.add_(0.1 * torch.rand(value.shape, generator=draw))
    return model.eval()


def images(n: int, channels: int, size: int) -> Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(2))


def norm(x: Tensor, state: State, name: str) -> Tensor:
    """Batch normalisation in eval mode, written out."""
    w, b, mean, var = (state[f"{name}.{part}"][:, None, None] for part in NORM[:4])
    return (x - mean) / torch.sqrt(var + 1e-5) * w + b


def conv(x: Tensor, state: State, name: str, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, state[f"{name}.weight"], None, stride, padding)


def basic_twin(x: Tensor, state: State, at: str, stride: int) -> Tensor:
    out = norm(conv(x, state, f"{at}.conv1", stride, 1), state, f"{at}.bn1").relu()
    out = norm(conv(out, state, f"{at}.conv2", 1, 1), state, f"{at}.bn2")
    if f"{at}.shortcut.0.weight" in state:
        x = norm(conv(x, state, f"{at}.shortcut.0", stride), state, f"{at}.shortcut.1")
    return (out + x).relu()


def bottleneck_twin(x: Tensor, state: State, at: str, stride: int) -> Tensor:
    out = norm(conv(x, state, f"{at}.conv1"), state, f"{at}.bn1").relu()
    out = norm(conv(out, state, f"{at}.conv2", stride, 1), state, f"{at}.bn2").relu()
    out = norm(conv(out, state, f"{at}.conv3"), state, f"{at}.bn3")
    if f"{at}.shortcut.0.weight" in state:
        x = norm(conv(x, state, f"{at}.shortcut.0", stride), state, f"{at}.shortcut.1")
    return (out + x).relu()


def preact_twin(x: Tensor, state: State, at: str, stride: int, shortcut: str) -> Tensor:
    active = norm(x, state, f"{at}.bn1").relu()
    out = conv(active, state, f"{at}.conv1", stride, 1)
    out = conv(norm(out, state, f"{at}.bn2").relu(), state, f"{at}.conv2", 1, 1)
    if f"{at}.{shortcut}.weight" in state:
        return out + conv(active, state, f"{at}.{shortcut}", stride)
    return out + x


def assert_twins(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "counts", "twin"),
    [("resnet18", (2, 2, 2, 2), basic_twin), ("resnet50", (3, 4, 6, 3), bottleneck_twin)],
)
def test_resnet_equals_its_slow_twin(name, counts, twin) -> None:
    model = roughened(build_model(name, width=0.125).double())
    state, x = model.state_dict(), images(2, 3, 32).double()
    out = norm(conv(x, state, "conv1", 1, 1), state, "bn1").relu()
    for stage, count in enumerate(counts, 1):
        for block in range(count):
            stride = 2 if stage > 1 and block == 0 else 1
            out = twin(out, state, f"layer{stage}.{block}", stride)
    out = F.avg_pool2d(out, 4).flatten(1)
    assert_twins(model(x), out @ state["linear.weight"].T + state["linear.bias"])


def test_preact_resnet_equals_its_slow_twin() -> None:
    model = roughened(build_model("preact-resnet18", width=0.125).double())
    state, x = model.state_dict(), images(2, 3, 32).double()
    out = conv(x, state, "conv1", 1, 1)
    for stage in range(1, 5):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            out = preact_twin(out, state, f"layer{stage}.{block}", stride, "shortcut.0")
    out = F.avg_pool2d(norm(out, state, "bn").relu(), 4).flatten(1)
    assert_twins(model(x), out @ state["linear.weight"].T + state["linear.bias"])


@pytest.mark.parametrize("widen", [1, 2])  # of width 1, the first block needs no shortcut
def test_wrn_equals_its_slow_twin(widen: int) -> None:
    model = roughened(build_model("wrn", depth=16, widen=widen).double())
    state, x = model.state_dict(), images(2, 3, 32).double()
    assert ("block1.layer.0.convShortcut.weight" in state) == (widen > 1)
    out = conv(x, state, "conv1", 1, 1)
    for stage in range(1, 4):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            at = f"block{stage}.layer.{block}"
            out = preact_twin(out, state, at, stride, "convShortcut")
    out = F.avg_pool2d(norm(out, state, "bn1").relu(), 8).flatten(1)
    assert_twins(model(x), out @ state["fc.weight"].T + state["fc.bias"])


def test_lenet_equals_its_slow_twin() -> None:
    model = roughened(build_model("lenet5").double())
    s, x = model.state_dict(), images(2, 1, 28).double()
    out = F.max_pool2d(F.conv2d(x, s["conv1.weight"], s["conv1.bias"], 1, 2).relu(), 2)
    out = F.max_pool2d(F.conv2d(out, s["conv2.weight"], s["conv2.bias"]).relu(), 2).flatten(1)
    for name in ("fc1", "fc2"):
        out = (out @ s[f"{name}.weight"].T + s[f"{name}.bias"]).relu()
    assert_twins(model(x), out @ s["fc3.weight"].T + s["fc3.bias"])


def test_small_cnn_equals_its_slow_twin() -> None:
    model = roughened(build_model("small-cnn").double())
    s, out = model.state_dict(), images(2, 1, 28).double()
    for i in range(1, 5):
        at = f"feature_extractor.conv{i}"
        out = F.conv2d(out, s[f"{at}.weight"], s[f"{at}.bias"]).relu()
        out = F.max_pool2d(out, 2) if i in (2, 4) else out
    out = out.flatten(1)
    for i in range(1, 4):
        at = f"classifier.fc{i}"
        out = out @ s[f"{at}.weight"].T + s[f"{at}.bias"]
        out = out.relu() if i < 3 else out
    assert_twins(model(images(2, 1, 28).double()), out)


@pytest.mark.parametrize("size", [28, 32, 64])
@pytest.mark.parametrize("name", ["resnet18", "preact-resnet18", "wrn-16-4"])
def test_residual_networks_take_any_size(name: str, size: int) -> None:
    model = build_model(name, width=0.125, channels=1, classes=2).eval()
    assert model(images(1, 1, size)).shape == (1, 2)


@pytest.mark.parametrize("size", [16, 28, 32, 64])
@pytest.mark.parametrize("name", ["small-cnn", "lenet5"])
def test_small_networks_are_built_for_a_size(name: str, size: int) -> None:
    model = build_model(name, size=size, channels=3, classes=7).eval()
    assert model(images(1, 3, size)).shape == (1, 7)


def test_narrow_network_keeps_its_strides() -> None:
    """With every stage at the least number of channels, the shortcut must still downsample."""
    for name in ("resnet18", "preact-resnet18", "wrn-16-4"):
        model = build_model(name, width=0.001).eval()
        assert model.conv1.out_channels == 8
        assert model(images(1, 3, 32)).shape == (1, 10)


def test_width_multiplies_channels() -> None:
    assert build_model("resnet18", width=0.25).linear.in_features == 128
    assert build_model("resnet50", width=0.25).linear.in_features == 512
    assert build_model("wrn-16-4", width=0.5).fc.in_features == 128


def test_wrn_starts_as_in_trades() -> None:
    model = build_model("wrn-16-4")
    weight = model.block3.layer[0].conv1.weight  # 128 to 256 channels: fan-in would differ
    assert float(weight.detach().std()) == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.01)
    assert bool((model.fc.bias == 0).all())
    biased = build_model("wrn-16-4", width=0.25, head="cosine", head_bias=True)
    assert bool((biased.fc.bias == 0).all())


def test_small_cnn_starts_as_in_trades() -> None:
    model = build_model("small-cnn")
    assert bool((model.classifier.fc3.weight == 0).all())
    assert bool((model.classifier.fc3.bias == 0).all())
    assert bool((model.feature_extractor.conv4.bias == 0).all())
    weight = model.feature_extractor.conv3.weight  # 32 to 64 channels: fan-out would differ
    assert float(weight.detach().std()) == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.03)


def test_small_cnn_with_a_cosine_head_does_not_start_at_zero() -> None:
    head = build_model("small-cnn", head="cosine", head_bias=True).classifier.fc3
    assert isinstance(head, CosineHead)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(10))


def test_seed_decides_the_weights_and_nothing_else_does() -> None:
    torch.manual_seed(7)
    first = build_model("resnet18", width=0.125, seed=3).state_dict()
    torch.rand(5)
    second = build_model("resnet18", width=0.125, seed=3).state_dict()
    third = build_model("resnet18", width=0.125, seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["conv1.weight"], third["conv1.weight"])


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    build_model("lenet5", seed=3)
    with pytest.raises(UserError):
        build_model("lenet5", size=3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_public_checkpoint_loads_after_adapting() -> None:
    model = build_model("wrn-16-4", width=0.25)
    state = {f"module.model.{key}": value for key, value in model.state_dict().items()}
    state["module.sub_block1.layer.0.bn1.weight"] = torch.ones(8)
    state["sub_block1.layer.0.bn1.bias"] = torch.ones(8)
    other = build_model("wrn-16-4", width=0.25, seed=1)
    other.load_state_dict(adapt_state(state), strict=True)
    assert torch.equal(other.fc.weight, model.fc.weight)


def test_adapting_leaves_our_own_state_as_it_is() -> None:
    state = build_model("wrn-16-4", width=0.25).state_dict()
    assert adapt_state(state).keys() == state.keys()


def test_importing_the_package_imports_no_architecture() -> None:
    code = "import sys, spat.models; print([m for m in sys.modules if 'resnet' in m or 'wrn' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("resnet18", {"classes": 1}, "classes must be at least 2, got 1; set it to"),
        ("resnet18", {"channels": 0}, "channels must be at least 1, got 0; use 1 for grey"),
        ("resnet18", {"head": "cosin"}, "unknown head 'cosin'. Did you mean 'cosine'"),
        ("resnet18", {"scale": 0.0}, "scale must be a positive number, got 0.0; the paper's"),
        ("resnet18", {"scale": float("nan")}, "scale must be a positive number, got nan"),
        ("resnet18", {"width": -1.0}, "width must be a positive number, got -1.0; 1 is"),
        ("resnet18", {"widht": 1.0}, "unknown setting of model 'resnet18' 'widht'. Did you mean"),
        ("wrn", {"depth": 33}, "depth of wrn must be 6n + 4, got 33; try 28 or 34."),
        ("wrn", {"depth": 4}, "depth of wrn must be 6n + 4, got 4; try 10 or 16."),
        ("wrn", {"widen": 0}, "widen of wrn must be at least 1, got 0; WRN-34-10 has 10."),
        ("small-cnn", {"size": 15}, "size of small-cnn must be at least 16 pixels, got 15;"),
        ("lenet5", {"size": 11}, "size of lenet5 must be at least 12 pixels, got 11;"),
        ("resnet19", {}, "unknown model 'resnet19'. Did you mean 'resnet18'"),
    ],
)
def test_wrong_settings_fail_in_one_sentence(name: str, given: dict, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(name, **given)
    assert str(caught.value).startswith(sentence)
