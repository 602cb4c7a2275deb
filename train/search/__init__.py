"""Search over the numbers of an experiment: feasible on validation first, then the validation metric."""

from train.search.trials import default_folder, search

__all__ = ["default_folder", "search"]
