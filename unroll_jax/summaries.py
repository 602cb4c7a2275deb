"""Short summaries of records and states, and pictures of traces and certificates."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

__all__ = ["energy_lines", "new_axes", "plot_layers", "summary"]


def summary(record: Any, lines: Callable[[], list[str]]) -> str:
    """The name of a record's type and lines about it; the shapes of its fields where
    values cannot be read."""
    leaves = jax.tree.leaves(record)
    shapes = jax.tree.map(lambda leaf: getattr(leaf, "shape", leaf), record._asdict())
    fields = (f"{name}: {shape}" for name, shape in shapes.items())
    return "\n  ".join(
        [
            type(record).__name__,
            *(lines() if leaves and all(map(_readable, leaves)) else fields),
        ]
    )


def _readable(leaf: Any) -> bool:
    """True for an array that is not traced, not deleted as by donation, and not in
    part on other hosts."""
    if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
        return isinstance(leaf, np.ndarray)
    return leaf.is_fully_addressable and not leaf.is_deleted()


def energy_lines(energy: Any, rising: Any = None) -> list[str]:
    """Lines about an energy (num_layers + 1, *batch); ``rising`` (num_layers,
    *batch) marks the rises of note."""
    energy = np.asarray(energy, np.float64)
    flat = energy.reshape(len(energy), -1)
    examples = (
        f"{flat.shape[1]} examples"
        if energy.ndim > 1
        else "1 example (one number for the whole state)"
    )
    rises = (
        np.diff(flat, axis=0) > 0.0
        if rising is None
        else np.asarray(rising).reshape(len(flat) - 1, -1)
    )
    worst = [
        (int(layer) + 1, share)
        for layer, share in enumerate(rises.mean(axis=1))
        if share > 0.0
    ]
    places = ", ".join(f"layer {layer} ({share:.1%})" for layer, share in worst[:4])
    more = f" and {len(worst) - 4} more" if len(worst) > 4 else ""
    return [
        f"{len(flat) - 1} layers, {examples}",
        f"energy, mean: {flat[0].mean():.6g} before, {flat[-1].mean():.6g} after",
        f"rises: {places}{more}" if worst else "rises: none",
    ]


def new_axes() -> Any:
    """Returns the axes of a new figure; raises an `ImportError` that names the extra
    if matplotlib is missing."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib, which is not installed: pip install"
            " 'unroll_jax[plot]'"
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def plot_layers(values: Any, *, label: str, axes: Any = None, marks: Any = None) -> Any:
    """Draws values (num_layers + 1, *batch) by layer: their median, the range of all,
    and the layers marked as risen.

    ``marks`` is boolean, (num_layers, *batch). Without ``axes`` it makes a figure.
    Returns the axes.
    """
    axes = new_axes() if axes is None else axes
    flat = np.asarray(values, np.float64)
    flat = flat.reshape(len(flat), -1)
    layers, median = np.arange(len(flat)), np.median(flat, axis=1)
    axes.plot(layers, median, marker=".", label="median" if flat.shape[1] > 1 else None)
    if flat.shape[1] > 1:
        axes.fill_between(
            layers, flat.min(axis=1), flat.max(axis=1), alpha=0.2, label="range"
        )
    if marks is not None:
        risen = (
            np.flatnonzero(np.asarray(marks).reshape(len(flat) - 1, -1).any(axis=1)) + 1
        )
        if len(risen):
            axes.plot(risen, median[risen], "x", color="C3", label="rises for some")
    axes.set(xlabel="layer", ylabel=label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    return axes
