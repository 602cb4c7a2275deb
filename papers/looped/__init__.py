"""Networks whose loops are an argument: accuracy at more loops than in training."""

from papers.looped.evaluation import evaluate, run, table
from papers.looped.study import Study, train

__all__ = ["Study", "evaluate", "run", "table", "train"]
