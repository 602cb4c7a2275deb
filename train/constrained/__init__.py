"""Training under descent constraints, whatever the task: the step, what validation judges, what evaluation reports."""

from train.constrained.bounds import Bounds, descent_bounds
from train.constrained.config import ConstraintConfig, DualConfig, training_rules
from train.constrained.evaluate import RATIO_EDGES, feasibility, ratio_figures
from train.constrained.recipe import describe_step, judge_losses
from train.constrained.state import Metrics, TrainState, init_state, make_step
from train.constrained.tuning import judgement, tunables, variants

__all__ = [
    "RATIO_EDGES",
    "Bounds",
    "ConstraintConfig",
    "DualConfig",
    "Metrics",
    "TrainState",
    "descent_bounds",
    "describe_step",
    "feasibility",
    "init_state",
    "judge_losses",
    "judgement",
    "make_step",
    "ratio_figures",
    "training_rules",
    "tunables",
    "variants",
]
