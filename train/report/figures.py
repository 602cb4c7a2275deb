"""The figures of reports: on layered runs one for each setting; of classifiers
confusion matrices and scenes."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ..data.pictures import NOT_COUNTED
from ..metrics import Predictions
from . import captions
from .groups import Setting, Variant
from .page import GUIDE, PANEL, WIDTH, Picture, tidy
from .records import METHODS, Array

# Okabe-Ito: distinct with every common colour blindness.
COLOURS = {"plain": "#D55E00", "deep_supervision": "#009E73", "constrained": "#0072B2"}
MARKERS = {"plain": "o", "deep_supervision": "^", "constrained": "s"}
LINE_STYLES = ("-", "--", ":", "-.")
# Of scores without a network; no method has them.
FLOOR_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9")
NOISY, BOUND = "#6E6E6E", "#004166"
# classes that the axes name, and whose shares are written out
MOST_NAMES, MOST_NUMBERS = 20, 12
LOG_RATIO = 4.0  # a log axis once the largest value is this many times the smallest
SMOOTHING = 1 / 60  # of the steps: the fraction that curves are smoothed over


class Kind(NamedTuple):
    """A figure: how it draws a setting on axes, caption, labels (formatted with the
    spec), and when it is drawn."""

    draw: Callable[[Axes, Setting], None]
    caption: Callable[[Setting], str]
    x: str
    y: str
    shows: Callable[[Setting], bool] = lambda _: True


def pictures(name: str, settings: Sequence[Setting]) -> list[Picture]:
    """The figure of a name in `FIGURES`, of each setting that has something to draw."""
    kind, drawn = FIGURES[name], []
    for setting in filter(kind.shows, settings):
        figure = Figure(figsize=PANEL, layout="constrained")
        axes = figure.subplots()
        tidy(axes, setting.title)
        axes.set(
            xlabel=kind.x.format(spec=setting.spec),
            ylabel=kind.y.format(spec=setting.spec),
        )
        kind.draw(axes, setting)
        handles, labels = axes.get_legend_handles_labels()
        entries, longest = (
            dict(zip(labels, handles, strict=True)),
            max(map(len, labels)),
        )
        ncols = 3 if longest < 16 else 2 if longest < 28 else 1
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=ncols,
        )
        drawn.append(
            Picture(
                f"{name}_{len(drawn) + 1}" if drawn else name,
                kind.caption(setting),
                figure,
            )
        )
    return drawn


def confusion(name: str, counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Shares of the examples of each class (rows) that are predicted as each class
    (columns), in percent."""
    shares = 100.0 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    axes.set(xlabel="prediction", ylabel="class", title=name)
    places = range(0, len(class_names), -(-len(class_names) // MOST_NAMES))
    names = [class_names[place] for place in places]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(places, names)
    if len(class_names) <= MOST_NUMBERS:
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share > 50 else "black"
            axes.text(
                column,
                row,
                f"{share:.0f}",
                color=colour,
                ha="center",
                va="center",
                fontsize=7,
            )
    return figure


def scenes(by_name: Mapping[str, Predictions], class_names: Sequence[str]) -> Figure:
    """Scenes, their labels, and a column of predictions of each network by its name;
    one colour a class."""
    # of tab20's pairs
    first, strong_first = (
        next(iter(by_name.values())),
        [*range(0, 20, 2), *range(1, 20, 2)],
    )
    colours = np.zeros((NOT_COUNTED + 1, 3))  # labels that are not counted are black
    colours[:NOT_COUNTED] = [
        colormaps["tab20"](strong_first[place % 20])[:3] for place in range(NOT_COUNTED)
    ]
    columns = {
        "scene": first.images,
        "labels (black: not counted)": colours[first.labels],
    }
    columns |= {name: colours[one.predicted] for name, one in by_name.items()}
    rows, height, width = first.labels.shape
    figure = Figure(
        figsize=(WIDTH, WIDTH / len(columns) * height / width * rows + 0.9),
        layout="constrained",
    )
    grid = figure.subplots(rows, len(columns), squeeze=False)
    for axes, (title, column) in zip(grid.T, columns.items(), strict=True):
        axes[0].set_title(title, fontsize="medium")
        for place, picture in zip(axes, column, strict=True):
            place.imshow(picture, interpolation="nearest")
            place.set_axis_off()
    patches = [
        Patch(color=tuple(colours[place]), label=name)
        for place, name in enumerate(class_names)
    ]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=6, fontsize="small"
    )
    return figure


def _score_curve(axes: Axes, setting: Setting) -> None:
    _curves(axes, setting, lambda variant: (setting.gammas, variant.scores()))
    colours, top = (
        itertools.cycle(FLOOR_COLOURS),
        max(one.scores().max() for one in setting.variants),
    )
    for name, scores in setting.floors().items():
        noisy = name == "noisy input"
        colour, style = (NOISY, "--x") if noisy else (next(colours), "--")
        axes.plot(setting.gammas, scores, style, color=colour, markersize=5, label=name)
        top = top if noisy else max(top, scores.max())
    axes.axvline(
        setting.train_gamma,
        color=GUIDE,
        linestyle=":",
        linewidth=1.2,
        label="training gamma",
    )
    if setting.spec.percent:
        axes.yaxis.set_major_formatter("{x:.0%}")
    else:  # the noisy input may lie beyond the axis: models stay distinct
        axes.set_ylim(
            0,
            (
                1.3 * top
                if setting.spec.baseline and np.isfinite(top) and top > 0
                else None
            ),
        )


def _frontier(axes: Axes, setting: Setting) -> None:
    for variant in setting.variants:
        colour, scores = COLOURS[variant.method], variant.scores().mean(0)
        face = colour if variant.feasible_runs == len(variant.runs) else "white"
        style: dict[str, Any] = {
            "color": colour,
            "markerfacecolor": face,
            "label": METHODS[variant.method],
        }
        axes.plot(
            scores[setting.training_index], scores[-1], MARKERS[variant.method], **style
        )


def _layer_losses(axes: Axes, setting: Setting) -> None:
    _curves(
        axes, setting, lambda variant: (setting.layers, variant.stack("layer_losses"))
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bounds: dict[str, Any] = {
        "color": BOUND,
        "markersize": 18,
        "markeredgewidth": 2,
        "label": "bound (constrained)",
    }
    for variant in setting.of("constrained"):
        axes.plot(setting.layers, variant.mean("bounds"), "_", **bounds)
    losses = np.concatenate(
        [variant.stack("layer_losses").ravel() for variant in setting.variants]
    )
    least, most = (
        np.min(losses, initial=np.inf, where=losses > 0),
        np.max(losses, initial=0, where=losses > 0),
    )
    if most >= LOG_RATIO * least:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _acceptance(axes: Axes, setting: Setting) -> None:
    _curves(
        axes,
        setting,
        lambda variant: (setting.layers, variant.stack("acceptance")[:, 0]),
    )
    axes.set_xticks(setting.layers)
    axes.yaxis.set_major_formatter("{x:.0%}")


def _ratios(axes: Axes, setting: Setting) -> None:
    for variant, style in _styled(setting):
        histograms = [run.evaluation["ratio_histogram"] for run in variant.runs]
        counts = np.sum(
            [one["counts"] for one in histograms], axis=(0, 1), dtype=np.float64
        )
        edges = np.asarray(histograms[0]["edges"], np.float64)
        # the last bin holds everything above its left edge
        if not np.isfinite(edges[-1]):
            edges[-1] = 2 * edges[-2] - edges[-3]
            ticks = np.linspace(0.0, edges[-2], 5)
            axes.set_xticks(
                ticks, [*(f"{tick:g}" for tick in ticks[:-1]), f"≥ {ticks[-1]:g}"]
            )
        mean, share = variant.mean("mean_ratio_all"), variant.mean("share_descending")
        label = f"{variant.title}: mean {mean:.2f},\n{share:.1%} of steps descend"
        shares, colour = 100 * counts / max(1.0, counts.sum()), COLOURS[variant.method]
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(
            shares, edges, color=colour, linestyle=style, linewidth=1.6, label=label
        )
    axes.axvline(1.0, color=GUIDE, linestyle=":", linewidth=1.4)


def _early_exit(axes: Axes, setting: Setting) -> None:
    grid = np.linspace(0.0, setting.num_layers, 200)
    for variant, style in _styled(setting):
        for run, label in itertools.zip_longest(variant.runs, [variant.title]):
            one, colour = run.evaluation["early_exit"], COLOURS[variant.method]
            depths, accuracies = (
                np.array(one["curve"][key]) for key in ("mean_depths", "accuracies")
            )
            order = np.argsort(depths, kind="stable")
            axes.plot(
                grid,
                np.interp(grid, depths[order], accuracies[order]),
                style,
                color=colour,
                label=label,
            )
            axes.plot(
                one["mean_depth"],
                one["accuracy"],
                MARKERS[variant.method],
                color=colour,
            )
    axes.yaxis.set_major_formatter("{x:.0%}")


def _multipliers(axes: Axes, setting: Setting) -> None:
    _by_step(axes, setting, "multipliers")


def _violations(axes: Axes, setting: Setting) -> None:
    """Draws violations on an axis that is linear about 0."""
    _by_step(axes, setting, "violations")
    axes.set_yscale("symlog", linthresh=0.1, linscale=0.7)
    axes.yaxis.set_major_formatter("{x:g}")


def _by_step(axes: Axes, setting: Setting, name: str) -> None:
    """Draws a column of the first constrained run, a curve for each layer with a
    bound."""
    run = setting.of("constrained")[0].runs[0]
    shades = colormaps["viridis"](np.linspace(0.0, 0.88, setting.num_layers + 1))
    window = np.ones(max(1, round(len(run.curves["step"]) * SMOOTHING)))
    steps, *curves = (
        np.convolve(x, window / window.sum(), "valid")
        for x in (run.curves["step"], *run.curves[name].T)
    )
    for layer, shade, curve, bound in zip(
        setting.layers, shades, curves, run.values("bounds"), strict=True
    ):
        if not np.isnan(bound):  # a layer without a bound has no constraint
            axes.plot(steps, curve, color=shade, label=f"layer {layer}")
    axes.axhline(0.0, color=GUIDE, linewidth=1.0)


def _curves(
    axes: Axes, setting: Setting, values: Callable[[Variant], tuple[Any, Array]]
) -> None:
    """Draws the mean over seeds of each variant, and a band from the smallest to the
    largest of several."""
    for variant, style in _styled(setting):
        (x, seeds), colour = values(variant), COLOURS[variant.method]
        axes.plot(
            x,
            seeds.mean(0),
            MARKERS[variant.method] + style,
            color=colour,
            markersize=5,
            label=variant.title,
        )
        if len(seeds) > 1:
            axes.fill_between(
                x, seeds.min(0), seeds.max(0), color=colour, alpha=0.2, linewidth=0
            )


def _styled(setting: Setting) -> list[tuple[Variant, str]]:
    """Variants with line styles: colour shows the method, the style separates
    variants of one method."""
    return [
        (v, LINE_STYLES[setting.of(v.method).index(v) % len(LINE_STYLES)])
        for v in setting.variants
    ]


def _all_have(key: str) -> Callable[[Setting], bool]:
    return lambda setting: all(variant.has(key) for variant in setting.variants)


def _trained(setting: Setting) -> bool:
    return any(len(one.runs[0].curves["step"]) for one in setting.of("constrained")[:1])


FIGURES = {
    "layer_losses": Kind(
        _layer_losses, captions.of_losses, "layer (0: embedded input)", "{spec.loss}"
    ),
    "score_curve": Kind(
        _score_curve,
        captions.of_score,
        "{spec.gamma}",
        "{spec.label}",
        lambda one: len(one.gammas) > 1,
    ),
    "frontier": Kind(
        _frontier,
        lambda _: (
            "The score of every variant at two strengths of noise. Open markers: not"
            " feasible."
        ),
        "at the training gamma",
        "at the largest test gamma",
        lambda setting: len(setting.variants) > 3,
    ),
    "ratios": Kind(
        _ratios,
        captions.of_ratios,
        "per-sample ratio  f$_l$ / f$_{{l-1}}$",
        "share of steps (% per bin)",
    ),
    "early_exit": Kind(
        _early_exit,
        lambda _: (
            "Accuracy against the layers run, over all thresholds. Marked: those chosen"
            " on validation data."
        ),
        "mean depth (layers run)",
        "{spec.label}",
        _all_have("early_exit"),
    ),
    "acceptance": Kind(
        _acceptance,
        lambda _: (
            "Share of test tokens at which a layer predicts the same as the last, at"
            " the least noise."
        ),
        "layer that drafts (0: embedded input)",
        "acceptance",
        _all_have("acceptance"),
    ),
    "multipliers": Kind(
        _multipliers,
        captions.of_steps("Multipliers"),
        "training step",
        "multiplier λ (smoothed)",
        _trained,
    ),
    "violations": Kind(
        _violations,
        captions.of_steps("Violations of the bounds"),
        "training step",
        "violation (≤ 0: the bound holds)",
        _trained,
    ),
}
