"""Sparse coding experiments by name: what they show, and their configurations."""

from ..config.run import Experiment
from ..config.sparse_coding import SparseCodingConfig

PAPER = "Hadou, NaderiAlizadeh, Ribeiro, Robust stochastically-descending unrolled networks, Section VI"
SPARSE_CODING: dict[str, Experiment] = {
    "sparse-coding": Experiment(
        config=SparseCodingConfig(method="both"),
        summary="10-layer LISTA on scikit-learn's digits, plain and constrained, compared",
        paper=PAPER,
        expect="to be measured",
    ),
}
