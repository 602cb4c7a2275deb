"""Short summaries of records and states, and pictures of traces and certificates."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

__all__ = ["energy_lines", "new_axes", "plot_layers", "summary"]


def summary(record: Any, lines: Callable[[], list[str]]) -> str:
    """Returns the name of a record's type and lines about it.

    If its values cannot be read, the lines are the shapes of its fields.
    """
    leaves = jax.tree.leaves(record)
    if leaves and all(map(_is_readable, leaves)):
        text = lines()
    else:
        fields = record._asdict()
        shapes = jax.tree.map(lambda leaf: getattr(leaf, "shape", leaf), fields)
        text = [f"{name}: {shape}" for name, shape in shapes.items()]
    return "\n  ".join([type(record).__name__, *text])


def _is_readable(leaf: Any) -> bool:
    """True for an array that is not traced, deleted by donation or on other hosts."""
    if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
        return isinstance(leaf, np.ndarray)
    return leaf.is_fully_addressable and not leaf.is_deleted()


def energy_lines(energy: Any, rising: Any = None) -> list[str]:
    """Returns lines about an energy (num_layers + 1, *batch).

    ``rising`` (num_layers, *batch) marks the rises to report. None reports all.
    """
    energy = np.asarray(energy, np.float64)
    flat = energy.reshape(len(energy), -1)
    examples = "1 example (one number for the whole state)"
    if energy.ndim > 1:
        examples = f"{flat.shape[1]} examples"

    rises = np.diff(flat, axis=0) > 0.0
    if rising is not None:
        rises = np.asarray(rising).reshape(len(flat) - 1, -1)
    places = []
    for layer, fraction in enumerate(rises.mean(axis=1), start=1):
        if fraction > 0.0:
            places.append(f"layer {layer} ({fraction:.1%})")
    listed = ", ".join(places[:4]) or "none"
    if len(places) > 4:
        listed += f" and {len(places) - 4} more"

    return [
        f"{len(flat) - 1} layers, {examples}",
        f"energy, mean: {flat[0].mean():.6g} before, {flat[-1].mean():.6g} after",
        f"rises: {listed}",
    ]


def new_axes() -> Any:
    """Returns the axes of a new figure.

    Without matplotlib it raises an `ImportError` that names the extra.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib, which is not installed: pip install"
            " 'unroll_jax[plot]'"
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def plot_layers(values: Any, *, label: str, axes: Any = None, marks: Any = None) -> Any:
    """Draws values (num_layers + 1, *batch) by layer: their median and range.

    Layers that have risen are marked. ``marks`` is boolean, (num_layers, *batch).
    Without ``axes`` it makes a figure. Returns the axes.
    """
    axes = new_axes() if axes is None else axes
    flat = np.asarray(values, np.float64)
    flat = flat.reshape(len(flat), -1)
    layers = np.arange(len(flat))
    median = np.median(flat, axis=1)

    # One example has no range, and needs no legend.
    several = flat.shape[1] > 1
    axes.plot(layers, median, marker=".", label="median" if several else None)
    if several:
        lowest = flat.min(axis=1)
        highest = flat.max(axis=1)
        axes.fill_between(layers, lowest, highest, alpha=0.2, label="range")

    if marks is not None:
        marked = np.asarray(marks).reshape(len(flat) - 1, -1).any(axis=1)
        risen = np.flatnonzero(marked) + 1
        if len(risen):
            axes.plot(risen, median[risen], "x", color="C3", label="rises for some")

    axes.set(xlabel="layer", ylabel=label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    return axes
