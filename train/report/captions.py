"""Captions of the figures of reports, from the configurations and evaluations of
their runs."""

from collections.abc import Callable

import numpy as np

from .groups import Setting, Variant


def of_score(setting: Setting) -> str:
    """The curve of scores."""
    dashed = " Dashed: without a network." * bool(setting.floors())
    title = f"{setting.spec.title[:1].upper()}{setting.spec.title[1:]}"
    return (
        f"{title} on the test split against the strength of its"
        f" noise.{_of_seeds(setting)}{dashed}"
    )


def of_losses(setting: Setting) -> str:
    """Losses of layers, and their bounds where these are enforced."""
    bounds = dict.fromkeys(bounds_of(one) for one in setting.of("constrained"))
    return " ".join(
        [f"Loss on the test split after every layer.{_of_seeds(setting)}", *bounds]
    )


def bounds_of(variant: Variant) -> str:
    """A sentence on the bounds of a constrained variant, from its configuration."""
    given = {
        name: variant.option(f"constraints.{name}")
        for name in ("bounds", "last", "floor", "reference")
    }
    if given["last"] is not None:
        return f"The bound of the last layer is {given['last']:g}; others have none."
    alphas = [
        variant.option(f"constraints.{name}") for name in ("first_alpha", "alpha")
    ]
    of = ", ".join(
        f"{each:g}"
        for alpha in alphas
        for each in np.ravel([] if alpha is None else alpha)
    )
    least = f", or {given['floor']:g} where that is larger" if given["floor"] else ""
    if given["bounds"] == "cumulative":
        words = (
            f"{given['reference']:g} times the product of (1 − α) up to that"
            f" layer{least}, whatever others lose"
        )
    else:
        words = f"(1 − α) times the loss of layer l − 1{least}"
    return f"The bound of layer l is {words}; α is {of}."


def of_ratios(setting: Setting) -> str:
    """Ratios of losses, which constraints bind in the mean."""
    bound = " Constraints bind the mean of samples, not each of them." * bool(
        setting.of("constrained")
    )
    return (
        f"Change of the loss of single samples by a layer, all layers together.{bound}"
    )


def of_steps(words: str) -> Callable[[Setting], str]:
    """Returns the caption of curves over the steps of training, which begins with
    some words."""

    def caption(setting: Setting) -> str:
        first = " of the first constrained run" * (
            sum(len(one.runs) for one in setting.of("constrained")) > 1
        )
        margin = " Training enforces bounds that are tighter than those stated." * (
            "Violations" in words
        )
        margins = [
            setting.of("constrained")[0].option(f"constraints.{name}margin")
            for name in ("", "first_")
        ]
        return f"{words}{first} by layer.{margin * any(margins)}"

    return caption


def _of_seeds(setting: Setting) -> str:
    most = max(len(one.runs) for one in setting.variants)
    return (
        f" Lines are means over {most} seeds, bands reach from the smallest to the"
        " largest." * (most > 1)
    )
