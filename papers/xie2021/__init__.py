"""Robustness of the equilibrium networks of Xie et al. (2021), and of baselines."""

from papers.xie2021.robustness import RobustnessConfig, robustness

__all__ = ["RobustnessConfig", "robustness"]
