"""Robustness of networks of Xie et al., Optimization Induced Equilibrium Networks
(2021), and of baselines."""

from papers.xie2021.robustness import RobustnessConfig, robustness

__all__ = ["RobustnessConfig", "robustness"]
