"""Figs. 5 and 6 as pictures: energies of real texts by layer, component and rho."""

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
BLUE = "#0072B2"
SKY = "#A6CEE8"
ORANGE = "#D55E00"
GREEN = "#009E73"
PINK = "#CC79A7"
GREY = "#CCCCCC"
# A change below this share of the energy's parts is round-off of float64.
STILL = 1e-13
MOVES = ("falls", "stands", "rises")
TITLES = {"sst2": "SST-2 sentences", "imdb": "IMDB reviews"}
LAYER = "layer"
ENERGY = "energy per word  E(Y$^{(t)}$) / n  (no unit)"
# Of box plots, in the legend.
MEAN = Line2D([], [], color=ORANGE, marker="o", markersize=4, label="mean over texts")
MIDDLE = Patch(
    facecolor=SKY,
    edgecolor=BLUE,
    label="middle half of the texts; whiskers: 1.5 times its height",
)
PARTS = {
    "pairs": ("pairs  Σ ρ(½|W$_a^T$(y$_u$ − y$_v$)|²)", BLUE),
    "residual": ("residual  ½|(Y − X) W$_a$|²", PINK),
    "features": ("feed-forward  ½Tr(Y W$_f$ Y$^T$) + ½|Y − B|²", GREEN),
}

Energies = Mapping[str, LayerEnergies]  # by name of the data set


def moves(energies: LayerEnergies) -> dict[str, np.ndarray]:
    """The layers that lower, keep (within round-off) or raise a text's energy.

    Returns:
      Booleans (texts, layers) for each of `MOVES`.
    """
    change = np.diff(energies.total)
    size = np.sum([np.abs(energies.components[name]) for name in PARTS], axis=0)
    still = np.abs(change) <= STILL * size[:, 1:]
    return {
        "falls": ~still & (change < 0.0),
        "stands": still,
        "rises": ~still & (change > 0.0),
    }


def layer_numbers(energies: LayerEnergies) -> dict[str, Any]:
    """All energies of all texts, not normalised, and the pictures' figures."""
    outcome = moves(energies)
    lengths = energies.lengths
    parts = {name: energies.components[name] for name in COMPONENTS}
    quantiles = [lengths.min(), np.median(lengths), lengths.max()]
    correct = np.mean(energies.logits.argmax(-1) == energies.labels)

    def mean_per_word(values: np.ndarray) -> list[float]:
        return (values / lengths[:, None]).mean(0).tolist()

    return {
        "texts": len(lengths),
        "words_min_median_max": [float(value) for value in quantiles],
        "share_of_text_layer_pairs": {k: float(outcome[k].mean()) for k in MOVES},
        "share_by_layer": {move: outcome[move].mean(0).tolist() for move in MOVES},
        "share_that_falls_or_stands_with_the_term_of_the_paper": _paper_share(energies),
        "mean_energy_per_word": mean_per_word(energies.total),
        "mean_component_per_word": {k: mean_per_word(v) for k, v in parts.items()},
        "share_of_texts_with_infinite_penalty": energies.infinite.mean(0).tolist(),
        "mean_cosine_of_words": np.nanmean(energies.cosine, axis=0).tolist(),
        "share_of_labels_predicted": float(correct),
        "words": lengths.tolist(),
        "energy": energies.total.tolist(),
        "components": {name: values.tolist() for name, values in parts.items()},
    }


def energy_picture(title: str, energies: Energies) -> Figure:
    """Box plots of the energy at every layer, a column for each data set.

    Below them is the share of texts whose energy each layer lowers.
    """
    figure = Figure(figsize=(WIDTH + 1.0, 6.2), layout="constrained")
    rows = {"squeeze": False, "sharex": "col", "height_ratios": (3, 1)}
    grid = figure.subplots(2, len(energies), **rows)
    for (boxes, bars), (name, measured) in zip(grid.T, energies.items(), strict=True):
        _boxes(boxes, measured)
        tidy(boxes, f"{TITLES[name]}: {_words(measured)}")
        _shares(bars, measured)
    grid[0, 0].set_ylabel(ENERGY)
    grid[1, 0].set_ylabel("share of texts (%)")
    figure.suptitle(title)
    handles = [
        MEAN,
        MIDDLE,
        Patch(color=BLUE, label="energy falls"),
        Patch(color=GREY, label="stands (within round-off)"),
        Patch(color=ORANGE, label="rises"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def component_picture(title: str, energies: Energies) -> Figure:
    """Mean of each component of the energy by layer, a column for each data set."""
    figure = Figure(figsize=(WIDTH + 1.0, 4.8), layout="constrained")
    panels = figure.subplots(1, len(energies), squeeze=False)[0]
    for axes, (name, measured) in zip(panels, energies.items(), strict=True):
        words = measured.lengths[:, None]
        layers = np.arange(measured.total.shape[1])
        for part, (label, colour) in PARTS.items():
            values = (measured.components[part] / words).mean(0)
            if values.any():
                line = {"color": colour, "label": label, "marker": "o", "markersize": 3}
                axes.plot(layers, values, **line)
        total = (measured.total / words).mean(0)
        axes.plot(layers, total, color=GUIDE, linewidth=2.2, label="their sum E")
        paper = (measured.components["paper"] / words).mean(0)
        if paper.any():
            label = "E + ½|Y W$_a$|², as the paper counts"
            axes.plot(layers, total + paper, "--", color=ORANGE, label=label)
        # Above the panel: inside, it would lie on curves.
        tidy(axes, f"{TITLES[name]}\n{_penalty(measured)}")
        axes.set(xlabel=LAYER, xticks=layers)
    panels[0].set_ylabel("mean " + ENERGY)
    lines = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        lines |= dict(zip(labels, handles, strict=True))
    figure.suptitle(title)
    place = {"loc": "outside lower center", "ncols": 2}
    figure.legend(list(lines.values()), list(lines), **place)
    return figure


def rho_picture(title: str, energies: Mapping[str, Energies]) -> Figure:
    """Box plots as in `energy_picture`: a row per data set, a column per rho."""
    rhos = list(next(iter(energies.values())))
    size = (WIDTH + 2.0, 3.0 * len(energies) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(energies), len(rhos), squeeze=False)
    for row, (name, by_rho) in zip(grid, energies.items(), strict=True):
        for axes, rho in zip(row, rhos, strict=True):
            _boxes(axes, by_rho[rho])
            words = f"ρ = {rho.replace('_', ' ')}\n{_words(by_rho[rho])}"
            tidy(axes, f"{TITLES[name]}, {words}")
        row[0].set_ylabel("energy per word  (no unit)")
    for axes in grid[-1]:
        axes.set_xlabel(LAYER)
    figure.suptitle(title)
    figure.legend(handles=[MEAN, MIDDLE], loc="outside lower center", ncols=2)
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
    outcome = moves(energies)
    layers = np.arange(1, energies.total.shape[1])
    below = np.zeros(len(layers))
    for move, colour in zip(MOVES, (BLUE, GREY, ORANGE), strict=True):
        share = 100.0 * outcome[move].mean(0)
        axes.bar(layers, share, bottom=below, color=colour, width=0.8)
        below = below + share
    tidy(axes, "")
    axes.set(xlabel=LAYER, ylim=(0, 100))


def _words(energies: LayerEnergies) -> str:
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
    """The share of pairs that do not rise with the paper's term 1/2 |Y W_a|^2.

    The energy of softmax attention lacks this term.
    """
    parts = energies.components
    with_norms = parts | {"residual": parts["residual"] + parts["paper"]}
    outcome = moves(energies._replace(components=with_norms))
    return float(1.0 - outcome["rises"].mean())
