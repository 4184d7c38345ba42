"""Evaluation: a model and attacks in, one row per example out."""

from spat.evaluation._attempt import Keep
from spat.evaluation._shares import evaluate_together
from spat.evaluation._transfer import transfer
from spat.evaluation.plan import Planned, attack_by_name, plan_attacks
from spat.evaluation.run import check_budget, evaluate

__all__ = [
    "Keep",
    "Planned",
    "attack_by_name",
    "check_budget",
    "evaluate",
    "evaluate_together",
    "plan_attacks",
    "transfer",
]
