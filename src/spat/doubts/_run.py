"""Ask every doubt of a model, one after the other, and give the model back as it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from spat import catalog
from spat.attacks._base import Attack
from spat.contracts import check_images, check_labels, check_logits
from spat.doubts._base import Doubt
from spat.doubts._subject import CPU_BATCH, Subject
from spat.errors import UserError
from spat.evaluation import plan_attacks
from spat.findings import Audit, Finding
from spat.models import head_scale
from spat.modes import borrowed
from spat.records import Event
from spat.rng import global_seed
from spat.threat import Norm

Sink = Callable[[Event], None]


def audit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = 8 / 255,
    norm: Norm = "linf",
    attack: Attack | str = "pgd-20",
    doubts: Sequence[str] = (),
    source: nn.Module | None = None,
    scale: float | None = None,
    seed: int = 0,
    sink: Sink = lambda event: None,
) -> Audit:
    """Is the robustness that this attack finds real? Every doubt's finding; the model is borrowed.

    attack: the attack in question: the one whose numbers are to be believed
    doubts: names of the doubts to ask (`spat list doubt`); all by default
    source: another model for the transfer attack; by default a small one is taught to imitate
    scale: of a cosine head's logits; by default what the head was made for
    """
    chosen = _attack(attack, eps, norm, scale or head_scale(model))
    asked = [catalog.build("doubt", name) for name in doubts or catalog.names("doubt")]
    with under_audit(model, x, y, chosen, seed=seed, source=source) as subject:
        if not len(subject):
            raise UserError(
                f"the model classifies none of the {len(x)} images rightly: "
                "there is no robustness to doubt."
            )
        findings = _ask(asked, subject, sink)
        clean, held = len(subject), int(subject.held.sum())
    return Audit(tuple(findings), repr(chosen), float(chosen.eps), chosen.norm, len(x), clean, held)


@contextmanager
def under_audit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    *,
    seed: int = 0,
    source: nn.Module | None = None,
) -> Iterator[Subject]:
    """The borrowed model and the rightly classified images, on the model's device.

    A model that draws from the global generator draws the same in every audit.
    """
    check_images(x)
    check_labels(y, len(x))
    device = next((p.device for p in model.parameters()), x.device)
    x, y = x.to(device), y.long().to(device)
    training = tuple(part for part in model.modules() if part.training)
    with borrowed(model, device), global_seed(device, seed, "audit"):
        right = _logits(model, x, y).argmax(1) == y
        yield Subject(model, x[right], y[right], attack, len(x), seed, source, training)


def _attack(attack: Attack | str, eps: float, norm: Norm, scale: float) -> Attack:
    """At the scale of a cosine head where the attack has one: the stronger of the two."""
    if isinstance(attack, Attack):
        return attack
    return plan_attacks([attack], eps=eps, norm=norm, scale=scale)[-1].attack


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Checked as a model's first answer should be."""
    logits = []
    for part in torch.split(x, CPU_BATCH):
        logits.append(model(part))
        check_logits(logits[-1], len(part))
    z = torch.cat(logits)
    check_labels(y, len(x), z.shape[1])
    return z


def _ask(doubts: Sequence[Doubt], subject: Subject, sink: Sink) -> list[Finding]:
    findings, begun = [], time.perf_counter()
    for done, doubt in enumerate(doubts):
        seconds = round(time.perf_counter() - begun, 1)
        values = {"doubt": doubt.name, "done": done, "n": len(doubts), "seconds": seconds}
        sink(Event("doubt", values))
        finding = doubt(subject)
        if finding is not None:
            findings.append(finding)
    return findings
