"""Evaluation: a model and attacks in, one row per example out."""

from spat.evaluation.plan import Planned, plan
from spat.evaluation.run import evaluate

__all__ = ["Planned", "evaluate", "plan"]
