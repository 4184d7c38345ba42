"""The page docs/scale.md: the model of benchmarks/scale.py, measurements, predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import scale
from spat.results import read_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "performance"
EACH = 64  # images of a process in a step: 4,096 on 64 GPUs
TASKS = {"SPAT, K = 10": (10, 2), "Madry, K = 3": (3, 1)}
GPUS = (8, 64, 512)
HOST = 8  # GPUs of one
IN_HOST, BETWEEN_HOSTS = 200e9, 40e9  # assumed bytes a second of a sum
NEAR, FAR = 25e-6, 15e-6  # assumed seconds of a small sum in a host, and of each doubling of hosts


def latency(processes: int) -> float:
    return NEAR + FAR * math.log2(max(1, processes / HOST))


def page(note: str) -> str:
    model = (scale.__doc__ or "").partition("\n\n")[2].rpartition("\n\n")[0].split("\n\n")
    return "\n".join(
        [
            note,
            "# Scale",
            "",
            "What a training step computes and what its processes tell each other, counted by "
            "`benchmarks/scale.py`; what that predicts, beside what was measured.",
            "",
            "```text",
            "\n\n".join(model),
            "```",
            "",
            *spoken(),
            *checked(),
            *imagenet(),
        ]
    )


def spoken() -> list[str]:
    """What travels, by the size of the model: counts, which no measurement enters."""
    net = scale.imagenet_resnet50()
    of = scale.cost(net, images=EACH, steps=10, passes=2)
    return [
        "## What processes say",
        "The inner attack, nearly all of the work, says nothing: each process attacks its share of "
        "the batch on its own copy of the model. A step of SPAT on ResNet-50 (ImageNet), whatever "
        "K is:",
        "",
        "| message | how many | bytes |",
        "|---|---|---|",
        f"| gradients, while the last ones are still computed | 1 | {of.gradients:,} |",
        f"| statistics of {len(net.norms)} BatchNorm layers, in 2 training passes, forwards and "
        f"backwards (`--sync-batchnorm false`: 1 message) | {of.messages - scale.AGREEMENTS} | "
        f"{of.statistics:,} |",
        f"| agreements: stop or save, an attack that failed, the loss | {scale.AGREEMENTS} | "
        "under 100 |",
        "",
        f"A checkpoint and the two files of weights are {of.checkpoint:,} bytes together, written "
        "by the first process while the others wait; AWP sends the gradients twice. Evaluations "
        "and validation say nothing but their counts.",
        "",
    ]


def checked() -> list[str]:
    path = RESULTS / "processes.json"
    lines = ["## Checked against one and two processes"]
    if not path.exists():
        return [*lines, "No measurements yet: run `benchmarks/processes.py`.", ""]
    facts = read_json(path)
    task, best, said = facts["task"], facts["seconds"], facts["predicted"]
    few = f"1 process, K = {task['fewer']}"
    return [
        *lines,
        f"`benchmarks/processes.py`: SPAT, ResNet-18, {task['batch']} images of {task['side']}x"
        f"{task['side']} a step, one thread a process, on {facts['machine']['processor']}. R is "
        f"taken from one process at K = {task['steps']} ({facts['rate'] / 1e9:.0f} GFLOP/s), B "
        f"({facts['bandwidth'] / 1e9:.1f} GB/s) and L ({1e6 * facts['delay']:.0f} microseconds) "
        "from sums alone; the rest is predicted.",
        "",
        "| | predicted s | measured s | measured / predicted |",
        "|---|---|---|---|",
        f"| 1 process, K = {task['steps']} | (R is from here) | {best['1']:.2f} | |",
        _row(few, said["fewer"], best["fewer"]),
        _row(f"2 processes, K = {task['steps']}", said["2"], best["2"]),
        "",
        f"* {_claim(facts['claims'][0])}; two processes that know nothing of each other do "
        f"{facts['capacity']:.2f} times the work of one on this machine",
        f"* largest gap of 50 losses of two processes and of one: {facts['gaps']['float64']:.1g} "
        f"in float64; {facts['gaps']['float32']:.1g} in float32, where one process with its "
        f"batches in another order parts from itself by {facts['gaps']['float32-turned']:.1g}: "
        "the signs of gradients near zero are decided by rounding.",
        "",
    ]


def _row(name: str, predicted: float, measured: float) -> str:
    return f"| {name} | {predicted:.2f} | {measured:.2f} | {measured / predicted:.2f} |"


def _claim(claim: Mapping[str, Any]) -> str:
    verdict = "reached" if claim["ratio"] >= claim["bar"] else "missed"
    return f"{claim['text']}: {claim['ratio']:.3g} (bar {claim['bar']:g}: {verdict})"


def imagenet() -> list[str]:
    """A prediction, and said to be one."""
    net, facts = scale.imagenet_resnet50(), read_json(RESULTS / "scale-gpu.json")
    ours = net.operations - scale.STEM + scale.OUR_STEM
    rate = EACH * ours * scale.forwards(10, 2) / facts["seconds"][str(EACH)]
    rows = []
    for name, (steps, passes) in TASKS.items():
        for sync in (True, False):
            for gpus in GPUS:
                rows.append(_predicted(name, steps, passes, sync, gpus, rate))
    return [
        "## Predicted: ImageNet, ResNet-50, 8, 64 and 512 GPUs",
        "**Nobody has run this.** It is the formula above with",
        "",
        f"* R = {rate / 1e12:.0f} TFLOP/s, measured on one {facts['gpu']} ({facts['task']}; "
        f"{EACH} images in {facts['seconds'][str(EACH)]:.3f} s; torch {facts['torch']}; read "
        "once, before `benchmarks/scale.py` had its present form, and not again since), taken to "
        f"hold at 224x224 too, where F is {net.operations / 1e9:.2f} GFLOP with ImageNet's stem;",
        f"* {EACH} images a GPU and step; a small sum takes {1e6 * NEAR:.0f} microseconds in a "
        f"host of {HOST} GPUs and {1e6 * FAR:.0f} more for each doubling of hosts: assumed;",
        f"* a sum runs at {IN_HOST / 1e9:.0f} GB/s in a host and at {BETWEEN_HOSTS / 1e9:.0f} GB/s "
        "between hosts: assumed;",
        "* no GPU waits for a slower one or for data.",
        "",
        "| training | BatchNorm over | GPUs | images a step | seconds a step | of it messages | "
        "images/s | efficiency | seconds an epoch |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "What it says: the messages of BatchNorm, not the gradients, are what limits many GPUs, "
        "for they are small and many; past a few dozen GPUs, where a share is a batch worth its "
        "own statistics, `--sync-batchnorm false` takes them away. What stands in the way before: "
        "each process holds the whole training set as bytes, for ImageNet at 224x224 "
        f"{scale.IMAGENET * 3 * 224 * 224 / 1e9:.0f} GB, more than one such GPU has (at 64x64 it "
        f"is {scale.IMAGENET * 3 * 64 * 64 / 1e9:.0f} GB), and the ResNet-50 in the package has "
        "the stem of CIFAR: ImageNet's is a model of your own. NCCL, by which GPUs talk, has run "
        "in none of our tests: gloo has, between two processes.",
        "",
    ]


def _predicted(name: str, steps: int, passes: int, sync: bool, gpus: int, rate: float) -> str:
    net = scale.imagenet_resnet50()
    images = EACH * gpus
    of = scale.cost(net, images=images, steps=steps, passes=passes, sync=sync)
    bandwidth = IN_HOST if gpus <= HOST else BETWEEN_HOSTS
    took = scale.seconds(of, scale.Machine(rate, bandwidth, latency), gpus)
    epoch = scale.IMAGENET / images * took.total
    over = "the whole batch" if sync else "each share"
    talk = took.messages + took.gradients
    return (
        f"| {name} | {over} | {gpus} | {images:,} | {took.total:.3f} | {talk:.3f} | "
        f"{images / took.total:,.0f} | {took.computing / took.total:.0%} | {epoch:,.0f} |"
    )
