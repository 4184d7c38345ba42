"""Claim: the official AutoAttack's verdicts sooner, and its robust accuracy much sooner.

`pyautoattack`, which is the official code, against spat's exact and fast mode: the same float32
model, images, threads and settings (`standard`), on a model about half robust and on a weak one.
Each contender has a process of its own, so that its peak memory is its own. The models are trained
here, from fixed seeds, and kept in runs/ for the next time; each has a file of results.
Run: make bench, or this file alone. On two idle cores about twelve minutes; --models, --n and
--queries shorten it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import spat
from race import ROOT, Claim, Race, report
from spat import tensorfile
from spat.records import Event
from spat.training.checkpoint import load_weights

WEIGHTS = ROOT / "runs" / "benchmarks" / "autoattack"
STAGES = ("apgd-ce", "apgd-t", "fab-t", "square")
BATCH = 250  # the official code's own
TRAINED_ON, SEED, THREADS = 6000, 0, 2
CLOSE = 0.003  # of robust accuracy: one image of 500 is 0.002
Told = tuple[Tensor, dict[str, float]]  # [n] what is robust; seconds of each stage


@dataclass(frozen=True)
class Subject:
    """A model to attack.

    train_eps, steps, epochs, lr: of its adversarial training
    eps: budget of the attack
    faster: times that fast mode must be faster than the official code
    """

    train_eps: float
    steps: int
    epochs: int
    lr: float
    eps: float
    faster: float

    def train(self) -> nn.Module:
        model = spat.model("small-cnn", seed=SEED)
        x, y = spat.data("mnist-mini").train[:TRAINED_ON].floats()
        inner = {"eps": self.train_eps, "step_size": 2 * self.train_eps / self.steps}
        settings = {f"attack.{key}": value for key, value in inner.items()}
        defence = spat.defence("madry", **settings, **{"attack.steps": self.steps})
        how: dict[str, Any] = {"schedule": "one-cycle", "batch_size": 64, "validation": 0.0}
        how |= {"epochs": self.epochs, "lr": self.lr, "seed": SEED}
        spat.train(model, x, y, defence=defence, **how)
        return model


SUBJECTS = {
    "half-robust": Subject(0.2, steps=5, epochs=4, lr=0.1, eps=0.26, faster=3.0),
    "weak": Subject(0.02, steps=2, epochs=3, lr=0.05, eps=0.25, faster=10.0),
}


def prepared(name: str) -> nn.Module:
    """The trained model, from its file if it was trained before."""
    path = WEIGHTS / f"{name}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        tensorfile.write(path, SUBJECTS[name].train().state_dict(), asdict(SUBJECTS[name]))
    model = spat.model("small-cnn", seed=SEED)
    load_weights(model, path)
    return model.eval()


def official(model: nn.Module, x: Tensor, y: Tensor, eps: float, queries: int) -> Told:
    autoattack: Any = importlib.import_module("pyautoattack").AutoAttack
    with contextlib.redirect_stdout(io.StringIO()):
        run = autoattack(model, eps=eps, norm="Linf", seed=SEED, version="standard", device="cpu")
        run.square.n_queries = queries
        parts = (run.apgd, run.apgd_targeted, run.fab, run.square)
        clocks = {name: Clock(part) for name, part in zip(STAGES, parts, strict=True)}
        x_adv, _ = run.run_standard_evaluation(x, y, batch_size=BATCH)
    with torch.no_grad():
        robust = model(x_adv).argmax(1) == y
    return robust, {name: clock.seconds for name, clock in clocks.items()}


class Clock:
    """Counts the seconds in an attack's `perturb`."""

    def __init__(self, attack: Any) -> None:
        self.seconds, self.perturb = 0.0, attack.perturb
        attack.perturb = self

    def __call__(self, *given: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self.perturb(*given, **named)
        finally:
            self.seconds += time.perf_counter() - begun


def ours(model: nn.Module, x: Tensor, y: Tensor, eps: float, queries: int, *, exact: bool) -> Told:
    name, ends = f"aa-{queries}", {"": time.perf_counter()}

    def note_ends(event: Event) -> None:
        if event.kind == "attack":
            ends[str(event.values["attack"]).partition(": ")[2]] = time.perf_counter()

    size = BATCH if exact else None
    given: dict[str, Any] = {"eps": eps, "exact": exact, "batch_size": size, "seed": SEED}
    outcomes = spat.evaluate(model, x, y, name, sink=note_ends, **given)
    begun = list(ends.values())
    stages = zip(list(ends)[1:], begun, begun[1:], strict=False)
    spent = {stage: after - before for stage, before, after in stages}
    return torch.from_numpy(outcomes.robust(name)), spent


CONTENDERS: dict[str, Callable[..., Told]] = {
    "official": official,
    "exact": partial(ours, exact=True),
    "fast": partial(ours, exact=False),
}


@dataclass(frozen=True)
class Run:
    """What a contender's process tells; memory in bytes, the peak of all of it."""

    seconds: float
    processor: float  # seconds of all its threads together
    stages: dict[str, float]
    robust: list[bool]
    loaded: int  # before the attack, of which Python and torch themselves are most
    memory: int

    @property
    def accuracy(self) -> float:
        return sum(self.robust) / len(self.robust)

    def told(self) -> dict[str, Any]:
        """All of it, without the verdict on each image."""
        return {**asdict(self), "robust": self.accuracy}


def run_here(contender: str, name: str, n: int, queries: int) -> Run:
    torch.set_num_threads(THREADS)
    model, (x, y) = prepared(name), spat.data("mnist-mini").test[:n].floats()
    loaded, begun, worked = peak_memory(), time.perf_counter(), time.process_time()
    robust, stages = CONTENDERS[contender](model, x, y, SUBJECTS[name].eps, queries)
    seconds, processor = time.perf_counter() - begun, time.process_time() - worked
    return Run(seconds, processor, stages, robust.tolist(), loaded, peak_memory())


def peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run_apart(contender: str, name: str, given: argparse.Namespace) -> Run:
    """In a process of its own."""
    command = [sys.executable, __file__, "--one", contender, "--models", name]
    command += ["--n", str(given.n), "--queries", str(given.queries)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    run = Run(**json.loads(ended.stdout.splitlines()[-1]))
    spent = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in run.stages.items())
    print(
        f"{name:12} {contender:9} {run.seconds:7.1f} s ({spent}), robust {run.accuracy:.1%}, "
        f"peak memory {run.memory / 2**20:.0f} MiB, {run.loaded / 2**20:.0f} before the attack",
        flush=True,
    )
    return run


def claims_of(name: str, runs: dict[str, Run]) -> list[Claim]:
    base, exact, fast = (runs[contender] for contender in CONTENDERS)
    same = sum(a == b for a, b in zip(exact.robust, base.robust, strict=True)) / len(base.robust)
    apart = abs(fast.accuracy - base.accuracy)
    times = {mode: base.seconds / runs[mode].seconds for mode in ("exact", "fast")}
    return [
        Claim(f"{name}: exact mode against the official code", times["exact"], 1.5),
        Claim(f"{name}: fast mode against the official code", times["fast"], SUBJECTS[name].faster),
        Claim(f"{name}: share of exact verdicts that are the official ones", same, 1.0),
        Claim(f"{name}: 1 less what fast mode's robust accuracy is off", 1 - apart, 1 - CLOSE),
    ]


def operations(model: nn.Module) -> int:
    """Floating-point operations of one forward of one image."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 1, 28, 28))
    return int(counter.get_total_flops())


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=500, help="images")
    parser.add_argument("--queries", type=int, default=5000, help="of Square")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each contender")
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--one", choices=CONTENDERS, help="run this contender here and tell how")
    return parser.parse_args()


def main() -> None:
    given = flags()
    if given.one:
        run = run_here(given.one, given.models[0], given.n, given.queries)
        print(json.dumps(asdict(run)))
        return
    for name in given.models:
        measure(name, given)


def measure(name: str, given: argparse.Namespace) -> None:
    model = prepared(name)
    turns = [
        {contender: run_apart(contender, name, given) for contender in CONTENDERS}
        for _ in range(given.rounds)
    ]
    best = {
        contender: min((turn[contender] for turn in turns), key=lambda run: run.seconds)
        for contender in CONTENDERS
    }
    facts = {
        "n": given.n,
        "queries": given.queries,
        "subject": asdict(SUBJECTS[name]),
        "operations": operations(model),
        "runs": {contender: run.told() for contender, run in best.items()},
    }
    report(f"autoattack-{name}", Race(given.rounds), claims_of(name, best), **facts)


if __name__ == "__main__":
    main()
