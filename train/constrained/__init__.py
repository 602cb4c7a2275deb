"""Training under descent constraints, whatever the task: the step, what validation judges, what evaluation reports."""

from train.constrained.bounds import Bounds, descent_bounds
from train.constrained.config import ConstraintConfig, DualConfig, check_depth, check_epochs, check_training
from train.constrained.evaluate import (
    RATIO_EDGES,
    feasibility,
    feasibility_words,
    noise_figures,
    noise_levels,
    ratio_figures,
)
from train.constrained.recipe import describe_step, judge_losses
from train.constrained.state import Metrics, TrainState, init_state, make_step, plain_slacks
from train.constrained.task import Task
from train.constrained.tuning import judgement, tunables, variants
from train.constrained.warmup import fitting_warmup

__all__ = [
    "RATIO_EDGES",
    "Bounds",
    "ConstraintConfig",
    "DualConfig",
    "Metrics",
    "Task",
    "TrainState",
    "check_depth",
    "check_epochs",
    "check_training",
    "descent_bounds",
    "describe_step",
    "feasibility",
    "feasibility_words",
    "fitting_warmup",
    "init_state",
    "judge_losses",
    "judgement",
    "make_step",
    "noise_figures",
    "noise_levels",
    "plain_slacks",
    "ratio_figures",
    "tunables",
    "variants",
]
