"""Figs. 5 and 6 as pictures: energies of real texts at every layer, their
components, and other rho."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from papers.yang2022.energies import COMPONENTS, LayerEnergies
from unroll_jax.train.report.page import GUIDE, WIDTH, tidy

# Okabe-Ito: distinct under every common colour blindness.
BLUE, SKY, ORANGE, GREEN, PINK, GREY = (
    "#0072B2",
    "#A6CEE8",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#CCCCCC",
)
# A change below this share of the energy's parts is round-off of float64.
STILL = 1e-13
MOVES = ("falls", "stands", "rises")
TITLES = {"sst2": "SST-2 sentences", "imdb": "IMDB reviews"}
LAYER, ENERGY = "layer", "energy per word  E(Y$^{(t)}$) / n  (no unit)"
PARTS = {
    "pairs": ("pairs  Σ ρ(½|W$_a^T$(y$_u$ − y$_v$)|²)", BLUE),
    "residual": ("residual  ½|(Y − X) W$_a$|²", PINK),
    "features": ("feed-forward  ½Tr(Y W$_f$ Y$^T$) + ½|Y − B|²", GREEN),
}

Energies = Mapping[str, LayerEnergies]  # by name of the data set


def moves(energies: LayerEnergies) -> dict[str, np.ndarray]:
    """Returns, (texts, layers) booleans each, if a layer lowers, keeps within
    round-off or raises a text's energy."""
    change = np.diff(energies.total)
    size = np.sum([np.abs(energies.components[name]) for name in PARTS], axis=0)
    still = np.abs(change) <= STILL * size[:, 1:]
    return {
        "falls": ~still & (change < 0.0),
        "stands": still,
        "rises": ~still & (change > 0.0),
    }


def layer_numbers(energies: LayerEnergies) -> dict[str, Any]:
    """All energies of all texts, not divided by anything, and the pictures' figures."""
    outcome = moves(energies)
    per_word = {
        name: energies.components[name] / energies.lengths[:, None]
        for name in COMPONENTS
    }
    return {
        "texts": len(energies.lengths),
        "words_min_median_max": [
            float(f(energies.lengths)) for f in (np.min, np.median, np.max)
        ],
        "share_of_text_layer_pairs": {
            move: float(outcome[move].mean()) for move in MOVES
        },
        "share_by_layer": {move: outcome[move].mean(0).tolist() for move in MOVES},
        "share_that_falls_or_stands_with_the_term_of_the_paper": _paper_share(energies),
        "mean_energy_per_word": (
            (energies.total / energies.lengths[:, None]).mean(0).tolist()
        ),
        "mean_component_per_word": {
            name: values.mean(0).tolist() for name, values in per_word.items()
        },
        "share_of_texts_with_infinite_penalty": energies.infinite.mean(0).tolist(),
        "share_of_labels_predicted": float(
            np.mean(energies.logits.argmax(-1) == energies.labels)
        ),
        "words": energies.lengths.tolist(),
        "energy": energies.total.tolist(),
        "components": {name: energies.components[name].tolist() for name in COMPONENTS},
    }


def energy_picture(title: str, energies: Energies) -> Figure:
    """Box plots of the energy at every layer, above the share of texts that each
    layer lowers; a column a data set."""
    figure = Figure(figsize=(WIDTH + 1.0, 6.2), layout="constrained")
    grid = figure.subplots(
        2, len(energies), squeeze=False, sharex="col", height_ratios=(3, 1)
    )
    for (boxes, bars), (name, measured) in zip(grid.T, energies.items(), strict=True):
        _boxes(boxes, measured)
        tidy(boxes, f"{TITLES[name]}: {_told(measured)}")
        _shares(bars, measured)
    grid[0, 0].set_ylabel(ENERGY)
    grid[1, 0].set_ylabel("share of texts (%)")
    figure.suptitle(title)
    handles = [
        Line2D([], [], color=ORANGE, marker="o", markersize=4, label="mean over texts"),
        Patch(
            facecolor=SKY,
            edgecolor=BLUE,
            label="middle half of the texts; whiskers: 1.5 times its height",
        ),
        Patch(color=BLUE, label="energy falls"),
        Patch(color=GREY, label="stands (within round-off)"),
        Patch(color=ORANGE, label="rises"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def component_picture(title: str, energies: Energies) -> Figure:
    """Mean of each component of the energy at every layer; a column a data set."""
    figure = Figure(figsize=(WIDTH + 1.0, 4.8), layout="constrained")
    panels = figure.subplots(1, len(energies), squeeze=False)[0]
    for axes, (name, measured) in zip(panels, energies.items(), strict=True):
        words = measured.lengths[:, None]
        layers = np.arange(measured.total.shape[1])
        for part, (label, colour) in PARTS.items():
            values = (measured.components[part] / words).mean(0)
            if values.any():
                axes.plot(
                    layers, values, marker="o", markersize=3, color=colour, label=label
                )
        axes.plot(
            layers,
            (measured.total / words).mean(0),
            color=GUIDE,
            linewidth=2.2,
            label="their sum E",
        )
        if measured.components["paper"].any():
            paper = ((measured.total + measured.components["paper"]) / words).mean(0)
            axes.plot(
                layers,
                paper,
                "--",
                color=ORANGE,
                label="E + ½|Y W$_a$|², as the paper counts",
            )
        # Above the panel: inside, it would lie on curves.
        tidy(axes, f"{TITLES[name]}\n{_penalty(measured)}")
        axes.set(xlabel=LAYER, xticks=layers)
    panels[0].set_ylabel("mean " + ENERGY)
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle(title)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=2
    )
    return figure


def rho_picture(title: str, energies: Mapping[str, Energies]) -> Figure:
    """Box plots as in `energy_picture`: a row a data set, a column a rho."""
    rhos = list(next(iter(energies.values())))
    figure = Figure(
        figsize=(WIDTH + 2.0, 3.0 * len(energies) + 0.8), layout="constrained"
    )
    grid = figure.subplots(len(energies), len(rhos), squeeze=False)
    for row, (name, by_rho) in zip(grid, energies.items(), strict=True):
        for axes, rho in zip(row, rhos, strict=True):
            _boxes(axes, by_rho[rho])
            tidy(
                axes,
                f"{TITLES[name]}, ρ = {rho.replace('_', ' ')}\n{_told(by_rho[rho])}",
            )
        row[0].set_ylabel("energy per word  (no unit)")
    for axes in grid[-1]:
        axes.set_xlabel(LAYER)
    figure.suptitle(title)
    handles = [
        Line2D([], [], color=ORANGE, marker="o", markersize=4, label="mean over texts"),
        Patch(
            facecolor=SKY,
            edgecolor=BLUE,
            label="middle half of the texts; whiskers: 1.5 times its height",
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _boxes(axes: Axes, energies: LayerEnergies) -> None:
    per_word = energies.total / energies.lengths[:, None]
    layers = list(range(per_word.shape[1]))
    axes.boxplot(
        per_word,
        positions=layers,
        showfliers=False,
        patch_artist=True,
        widths=0.6,
        boxprops={"facecolor": SKY, "edgecolor": BLUE},
        medianprops={"color": BLUE},
        whiskerprops={"color": BLUE},
        capprops={"color": BLUE},
    )
    axes.plot(layers, per_word.mean(0), color=ORANGE, marker="o", markersize=4)
    axes.set_xticks(layers, [str(layer) for layer in layers])


def _shares(axes: Axes, energies: LayerEnergies) -> None:
    outcome, layers = moves(energies), np.arange(1, energies.total.shape[1])
    below = np.zeros(len(layers))
    for move, colour in zip(MOVES, (BLUE, GREY, ORANGE), strict=True):
        share = 100.0 * outcome[move].mean(0)
        axes.bar(layers, share, bottom=below, color=colour, width=0.8)
        below = below + share
    tidy(axes, "")
    axes.set(xlabel=LAYER, ylim=(0, 100))


def _told(energies: LayerEnergies) -> str:
    share = {move: float(values.mean()) for move, values in moves(energies).items()}
    return ", ".join(f"{move} {share[move]:.1%}" for move in MOVES)


def _penalty(energies: LayerEnergies) -> str:
    share = energies.infinite.mean(0)
    last = "0" if not share[1:].any() else f"infinite for up to {share[1:].max():.0%}"
    return (
        f"ReLU's penalty φ: infinite for {share[0]:.0%}\nof the texts at layer 0,"
        f" {last} from layer 1 on"
    )


def _paper_share(energies: LayerEnergies) -> float:
    """The share of pairs that do not rise when the paper's 1/2 |Y W_a|^2, absent
    from softmax, is added."""
    with_norms = dict(
        energies.components,
        residual=energies.components["residual"] + energies.components["paper"],
    )
    return float(1.0 - moves(energies._replace(components=with_norms))["rises"].mean())
