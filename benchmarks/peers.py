"""Claim: PGD-10 is faster than that of the toolkits people use, on the same model and batch.

torchattacks, foolbox and the Adversarial Robustness Toolbox are called as their documentation says,
with the same eps, step size, steps and random start. A toolkit that is not installed is left out
and named. `make bench` installs them into an environment of their own.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from race import Claim, Run, apart, from_flags, report
from spat.attacks.pgd import PGD
from spat.fast import surrogate
from spat.models import build_model

EPS, SIZE, STEPS = 8 / 255, 2 / 255, 10


def torchattacks(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    attack = importlib.import_module("torchattacks").PGD(model, EPS, SIZE, STEPS, True)
    return lambda: attack(x, y)


def foolbox(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    box: Any = importlib.import_module("foolbox")
    wrapped = box.PyTorchModel(model, bounds=(0, 1))
    attack = box.attacks.LinfPGD(abs_stepsize=SIZE, steps=STEPS, random_start=True)
    return lambda: attack(wrapped, x, y, epsilons=EPS)


def toolbox(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """The Adversarial Robustness Toolbox, which speaks NumPy."""
    classifiers: Any = importlib.import_module("art.estimators.classification")
    evasion: Any = importlib.import_module("art.attacks.evasion")
    shape, images, labels = tuple(x.shape[1:]), x.numpy(), y.numpy()
    wrapped = classifiers.PyTorchClassifier(
        model, nn.CrossEntropyLoss(), shape, 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    attack = evasion.ProjectedGradientDescent(
        wrapped,
        eps=EPS,
        eps_step=SIZE,
        max_iter=STEPS,
        num_random_init=1,
        batch_size=len(x),
        verbose=False,
    )
    return lambda: attack.generate(images, labels)


MODULES = {
    "torchattacks": "torchattacks",
    "foolbox": "foolbox",
    "adversarial-robustness-toolbox": "art",
}
PEERS = {
    "torchattacks": torchattacks,
    "foolbox": foolbox,
    "adversarial-robustness-toolbox": toolbox,
}


def contender(name: str) -> Run:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(64, 3, 32, 32, generator=rng), torch.randint(10, (64,), generator=rng)
    model = build_model("resnet18", seed=0).eval()
    return PEERS[name](model, x, y) if name in PEERS else ours(model, x, y, name)


def ours(model: nn.Module, x: Tensor, y: Tensor, precision: Any) -> Run:
    copy = surrogate(model, precision=precision)
    attack = PGD(eps=EPS, step_size=SIZE, steps=STEPS)
    return lambda: attack(copy, x, y, rng=0)


def main() -> None:
    race = from_flags(__doc__, rounds=3)
    missing = [name for name, module in MODULES.items() if not find_spec(module)]
    for name in missing:
        print(f"{name} is left out: it is not installed")
    names = [name for name in (*PEERS, "float32", "bfloat16") if name not in missing]
    with apart({name: (contender, name) for name in names}) as runs:
        best = race(runs)
    peer = min((best[name] for name in PEERS if name in best), default=float("nan"))
    print(", ".join(f"{name} {seconds:.3g} s" for name, seconds in best.items()))
    claims = [
        Claim("PGD-10 in float32 against the fastest peer", peer / best["float32"], 1.3),
        Claim("PGD-10 in bfloat16 against the fastest peer", peer / best["bfloat16"], 2.5),
    ]
    report("peers", race, claims, seconds=best)


if __name__ == "__main__":
    main()
