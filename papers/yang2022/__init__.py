"""Figs. 1 to 6 of Yang, Huang, Wipf, Transformers from an Optimization Perspective
(2022)."""

from papers.yang2022.config import FiguresConfig
from papers.yang2022.figures import draw

__all__ = ["FiguresConfig", "draw"]
