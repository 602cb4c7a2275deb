"""Attention as descent: pairwise energies with one head or several, the graphs and
slopes they take, and the sums."""

__all__: list[str] = []
