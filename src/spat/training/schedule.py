"""What changes as training goes on, as pure functions of where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from spat.attacks.pgd import PGD
from spat.config import Training
from spat.defences._base import Defence, Progress

PEAK = 0.3  # one-cycle rises over this share of training, the usual choice
FLOOR = 0.1  # an eps ramp begins at this share of the budget: at 0 the inner attack has no gradient
LONGEST = 1.25  # of eps, a step: what one step from a random start needs (FGSM-RS)
T = TypeVar("T")


def learning_rate(settings: Training, epoch: float) -> float:
    """The rate when `epoch` epochs (a real number, 0 at the start) have been trained."""
    scale = min(1.0, epoch / settings.warmup) if settings.warmup > 0 else 1.0
    done = min(epoch / settings.epochs, 1.0)
    return settings.lr * scale * _shape(settings, epoch, done)


def _shape(settings: Training, epoch: float, done: float) -> float:
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    if settings.schedule == "one-cycle":
        return done / PEAK if done < PEAK else (1 - done) / (1 - PEAK)
    current = math.floor(epoch) + 1  # milestones count epochs from 1; the rate is one an epoch
    levels = settings.levels or tuple(0.1**k for k in range(1, len(settings.milestones) + 1))
    if settings.schedule == "linear":
        knots = (0, *settings.milestones)
        return float(np.interp(current, knots, (levels[0], *levels)))
    passed = sum(current >= milestone for milestone in settings.milestones)
    return levels[passed - 1] if passed else 1.0


def ramped(defence: Defence, settings: Training, progress: Progress) -> Defence:
    """The defence with the inner attack that it has at this point of training."""
    attack, done = defence.attack, progress.step / progress.steps
    if done < settings.eps_ramp:
        attack = _within(attack, FLOOR + (1 - FLOOR) * done / settings.eps_ramp)
    if done < settings.attack_ramp:
        attack = _stepping(attack, max(1, round(attack.steps * done / settings.attack_ramp)))
    if settings.attack_steps:
        steps = value_now(settings.attack_steps, settings.attack_milestones, progress)
        attack = _stepping(attack, steps)
    if settings.attack_sizes:
        share = value_now(settings.attack_sizes, settings.attack_milestones, progress)
        attack = replace(attack, step_size=share * float(attack.eps))
    return defence if attack is defence.attack else replace(defence, attack=attack)


def value_now(values: Sequence[T], milestones: Sequence[int], progress: Progress) -> T:
    """That of the present phase: phases begin at the milestones or, without them, are equal."""
    if milestones:
        return values[sum(progress.epoch >= epoch for epoch in milestones)]
    return values[progress.step * len(values) // progress.steps]


def _within(attack: PGD, share: float) -> PGD:
    """The attack with a share of its eps; a step is the same share of it as before."""
    size = None if attack.step_size is None else attack.step_size * share
    return replace(attack, eps=attack.eps * share, step_size=size)


def _stepping(attack: PGD, steps: int) -> PGD:
    """Fewer steps are longer ones: steps x step size stays what it was, up to 1.25 eps a step."""
    if steps == attack.steps:
        return attack
    size = attack.step_size
    if size is not None:
        size = min(size * attack.steps / steps, LONGEST * float(attack.eps))
    return replace(attack, steps=steps, step_size=size)
