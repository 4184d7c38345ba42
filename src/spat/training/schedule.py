"""What changes as training goes on, as pure functions of where it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from spat.config import Training
from spat.defences._base import Defence

PEAK = 0.3  # one-cycle rises over this share of training, the usual choice
FLOOR = 0.1  # an eps ramp begins at this share of the budget: at 0 the inner attack has no gradient


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


def ramped(defence: Defence, settings: Training, done: float) -> Defence:
    """The defence with the inner attack it has when this share of training is done.

    Fewer steps are longer ones: steps x step size stays what it was, up to 1.25 eps a step.
    """
    attack = defence.attack
    if done < settings.eps_ramp:
        share = FLOOR + (1 - FLOOR) * done / settings.eps_ramp
        size = None if attack.step_size is None else attack.step_size * share
        attack = replace(attack, eps=attack.eps * share, step_size=size)
    if done < settings.attack_ramp:
        steps = max(1, round(attack.steps * done / settings.attack_ramp))
        size = attack.step_size
        if size is not None:
            size = min(size * attack.steps / steps, 1.25 * float(attack.eps))
        attack = replace(attack, steps=steps, step_size=size)
    return defence if attack is defence.attack else replace(defence, attack=attack)
