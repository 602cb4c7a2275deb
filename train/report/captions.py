"""Captions of the figures of reports, from the configurations and evaluations of their runs."""

from collections.abc import Callable

import numpy as np

from .groups import Setting, Variant


def of_score(setting: Setting) -> str:
    """The curve of scores."""
    dashed = " Dashed: without a network." * bool(setting.floors())
    title = f"{setting.spec.title[:1].upper()}{setting.spec.title[1:]}"
    return f"{title} on the test split against the strength of its noise.{_of_seeds(setting)}{dashed}"


def of_losses(setting: Setting) -> str:
    """Losses of layers, and their bounds where these are enforced."""
    bounds = dict.fromkeys(bounds_of(one) for one in setting.of("constrained"))
    return " ".join([f"Loss on the test split after every layer.{_of_seeds(setting)}", *bounds])


def bounds_of(variant: Variant) -> str:
    """A sentence on the bounds of a constrained variant, from its configuration."""
    given = {name: variant.option(f"constraints.{name}") for name in ("bounds", "last", "floor", "reference", "layers")}
    if given["last"] is not None:
        return f"The bound of the last layer is {given['last']:g}; others have none."
    if given["layers"] is False:
        return "Bounds of layers are shown, and were not enforced."
    alphas = [variant.option(f"constraints.{name}") for name in ("first_alpha", "alpha")]
    of = ", ".join(f"{each:g}" for alpha in alphas for each in np.ravel([] if alpha is None else alpha))
    least = f", or {given['floor']:g} where that is larger" if given["floor"] else ""
    if given["bounds"] == "cumulative":
        words = f"{given['reference']:g} times the product of (1 − α) up to that layer{least}, whatever others lose"
    else:
        words = f"(1 − α) times the loss of layer l − 1{least}"
    return f"The bound of layer l is {words}; α is {of}."


def of_ratios(setting: Setting) -> str:
    """Ratios of losses, and the statistic that constraints bind."""
    binds = dict.fromkeys(one.runs[0].evaluation.get("bind", "mean") for one in setting.of("constrained"))
    words = " and ".join("mean" if bind == "mean" else "mean over the worst samples" for bind in binds)
    bound = f" Constraints bind the {words} of samples, not each of them." * bool(binds)
    return f"Change of the loss of single samples by a layer, all layers together.{bound}"


def of_steps(words: str) -> Callable[[Setting], str]:
    """Returns the caption of curves over the steps of training, which begins with some words."""

    def caption(setting: Setting) -> str:
        (run, *others), kinds = setting.of("constrained")[0].runs, len(setting.of("constrained"))
        first = " of the first constrained run" * bool(others or kinds > 1)
        dashed = "; dashed: constraints by name" * bool(run.evaluation.get("limits"))
        margin = " Training enforces bounds that are tighter than those stated." * ("Violations" in words)
        margins = [setting.of("constrained")[0].option(f"constraints.{name}margin") for name in ("", "first_")]
        return f"{words}{first} by layer{dashed}.{margin * any(margins)}"

    return caption


def _of_seeds(setting: Setting) -> str:
    most = max(len(one.runs) for one in setting.variants)
    return f" Lines are means over {most} seeds, bands reach from the smallest to the largest." * (most > 1)
