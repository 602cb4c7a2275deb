"""The figures of papers, drawn again: one paper a file."""

from collections.abc import Callable

from train.figures.config import FiguresConfig
from train.figures.yang2022 import draw_yang2022

__all__ = ["FIGURES", "FiguresConfig"]

FIGURES: dict[str, Callable[..., None]] = {"yang2022": draw_yang2022}
