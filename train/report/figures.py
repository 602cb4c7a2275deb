"""The figures of reports: on layered runs one for each setting; of classifiers
confusion matrices and scenes."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ..core.metrics import Predictions
from ..data.pictures import NOT_COUNTED
from . import tables
from .groups import Setting, Variant
from .page import GUIDE, PANEL, WIDTH, Picture, tidy
from .records import METHODS, Array

# Okabe-Ito: distinct with every common colour blindness.
STYLES = {
    "plain": ("#D55E00", "o"),
    "deep_supervision": ("#009E73", "^"),
    "constrained": ("#0072B2", "s"),
}
LINE_STYLES = ("-", "--", ":", "-.")
# Of scores without a network. No method has them.
FLOOR_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9")
NOISY, BOUND = "#6E6E6E", "#004166"
# classes that the axes name, and whose shares are written out
MOST_NAMES, MOST_NUMBERS = 20, 12
LOG_RATIO = 4.0  # a log axis once the largest value is this many times the smallest
SMOOTHING = 1 / 60  # of the steps: the fraction that curves are smoothed over
# A $ in the name of a class or an option is no mathematics.
without_mathtext = mpl.rc_context({"text.parse_math": False})


class Kind(NamedTuple):
    """A figure: how it draws a setting on axes, caption, labels (formatted with the
    spec), and when it is drawn."""

    draw: Callable[[Axes, Setting], None]
    caption: str
    x: str
    y: str
    shows: Callable[[Setting], Any] = lambda setting: True


@without_mathtext
def pictures(name: str, settings: Sequence[Setting]) -> list[Picture]:
    """The figure of a name in `FIGURES`, of each setting that has something to draw."""
    kind = FIGURES[name]
    drawn = []
    for setting in filter(kind.shows, settings):
        figure, axes = _panel(setting.title)
        axes.set_xlabel(kind.x.format(spec=setting.spec))
        axes.set_ylabel(kind.y.format(spec=setting.spec))
        kind.draw(axes, setting)
        _legend(figure, axes)
        caption = kind.caption.format(spec=setting.spec)
        if name == "layer_losses":
            caption = f"{caption} {bounds_of(setting)}".strip()
        place = f"{name}_{len(drawn) + 1}" if drawn else name
        drawn.append(Picture(place, caption, figure))
    return drawn


@without_mathtext
def confusion(name: str, counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Shares of the examples of each class (rows) that are predicted as each class
    (columns), in percent."""
    shares = 100.0 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = _panel(name)
    axes.grid(visible=False)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    axes.set(xlabel="prediction", ylabel="class")
    places = range(0, len(class_names), -(-len(class_names) // MOST_NAMES))
    names = [class_names[place] for place in places]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(places, names)
    if len(class_names) <= MOST_NUMBERS:
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share > 50 else "black"
            axes.text(column, row, f"{share:.0f}", color=colour, **style)
    return figure


@without_mathtext
def scenes(by_name: Mapping[str, Predictions], class_names: Sequence[str]) -> Figure:
    """Scenes, their labels, and a column of predictions of each network by its name,
    one colour a class."""
    first = next(iter(by_name.values()))
    # the strong colours of tab20's pairs come first. Labels not counted are black
    strong_first = np.r_[0:20:2, 1:20:2]
    colours = np.zeros((NOT_COUNTED + 1, 3))
    colours[:-1] = colormaps["tab20"](np.resize(strong_first, NOT_COUNTED))[:, :3]
    columns = {
        "scene": first.images,
        "labels (black: not counted)": colours[first.labels],
    }
    columns |= {name: colours[one.predicted] for name, one in by_name.items()}
    rows, height, width = first.labels.shape
    size = WIDTH, WIDTH / len(columns) * height / width * rows + 0.9
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, len(columns), squeeze=False)
    for axes, (title, column) in zip(grid.T, columns.items(), strict=True):
        axes[0].set_title(title, fontsize="medium")
        for place, picture in zip(axes, column, strict=True):
            place.imshow(picture, interpolation="nearest")
            place.set_axis_off()
    patches = [
        Patch(color=tuple(colour), label=name)
        for colour, name in zip(colours, class_names, strict=False)
    ]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=6, fontsize="small"
    )
    return figure


@without_mathtext
def certified(evaluations: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Certified accuracy by radius, a line for each network and seed, and accuracy
    under attacks as dots."""
    figure = Figure(figsize=(WIDTH, PANEL[1]), layout="constrained")
    axes = figure.subplots()
    tidy(axes, "certified accuracy")
    axes.set(xlabel="radius (L2, pixels in [0, 1])", ylabel="accuracy (%)")
    colours = itertools.cycle([colour for colour, _ in STYLES.values()])
    for (name, seeds), colour in zip(evaluations.items(), colours, strict=False):
        for seed in seeds:
            radii, shares = np.reshape(seed["certified_curve"], (-1, 2)).T
            # up to a radius, the images that have no smaller one are right
            ends = np.r_[0.0, radii, radii[-1:]]
            above = 100.0 * np.r_[shares[:1], shares, 0.0 * shares[-1:]]
            if len(radii):
                axes.step(
                    ends, above, where="pre", color=colour, label=f"{name}, certified"
                )
            for radius, share in seed.get("attack_accuracy", {}).items():
                axes.scatter(
                    float(radius),
                    100.0 * share,
                    color=colour,
                    label=f"{name}, attacked",
                )
    axes.set(xlim=(0, None), ylim=(0, 102))
    _legend(figure, axes)
    return figure


@without_mathtext
def nearest(
    name: str, shown: Predictions, radii: Sequence[float], class_names: Sequence[str]
) -> Figure:
    """Rightly classified test images with the smallest radii."""
    count = len(shown.labels)
    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    figure.suptitle(name, fontsize="medium")
    row = np.atleast_1d(figure.subplots(1, max(count, 1)))
    for axes in row:
        axes.set_axis_off()
    for axes, image, label, radius in zip(
        row, shown.images, shown.labels, radii, strict=False
    ):
        grey = image.shape[-1] == 1
        axes.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None)
        axes.set_title(f"{class_names[int(label)]}\n{radius:.2g}", fontsize="small")
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    """Draws each entry once, below the axes, in rows of equal length."""
    handles, labels = axes.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    longest = max(map(len, labels), default=1)
    fit = min(max(int(10 * figure.get_figwidth()) // longest, 1), 3)
    rows = -(-len(entries) // fit)
    columns = -(-len(entries) // max(rows, 1))
    figure.legend(
        [*entries.values()], [*entries], loc="outside lower center", ncols=columns
    )


def _panel(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.subplots()
    tidy(axes, title)
    return figure, axes


def bounds_of(setting: Setting) -> str:
    """A sentence on the bounds of constrained variants, from their configurations."""
    names = ("alpha", "first_alpha", "reference", "floor", "last", "margin")
    sentences = {}
    for variant in setting.of("constrained"):
        given = {name: variant.option(f"constraints.{name}") for name in names}
        words = [
            f"{name.replace('_', ' ')} {tables.text_of([value])}"
            for name, value in given.items()
            if value
        ]
        kind = variant.option("constraints.bounds")
        sentences[f"Bounds ({kind}): {', '.join(words)}."] = variant
    return " ".join(sentences)


def _score_curve(axes: Axes, setting: Setting) -> None:
    for variant, style in _styled(setting):
        _curve(axes, setting.gammas, variant.scores(), style)
    colours = itertools.cycle(FLOOR_COLOURS)
    floors = setting.floors()
    noisy = floors.pop("noisy input", None)
    for name, scores in floors.items():
        axes.plot(setting.gammas, scores, "--", color=next(colours), label=name)
    top = axes.dataLim.y1
    if noisy is not None:  # it may lie beyond the axis: models stay distinct
        axes.plot(setting.gammas, noisy, "--x", color=NOISY, label="noisy input")
    _guide(axes.axvline, setting.train_gamma, label="training gamma")
    if setting.spec.percent:
        axes.yaxis.set_major_formatter("{x:.1%}")
    elif noisy is not None and 0 < top < np.inf:
        axes.set_ylim(0, 1.3 * top)
    else:
        axes.set_ylim(0)


def _frontier(axes: Axes, setting: Setting) -> None:
    for variant, style in _styled(setting):
        scores = variant.scores().mean(0)[[setting.training_index, -1]]
        style |= {"linestyle": "", "label": METHODS[variant.method]}
        if not np.all(variant.stack("feasible")):
            style["markerfacecolor"] = "white"
        axes.plot(*scores, **style)


def _layer_losses(axes: Axes, setting: Setting) -> None:
    _by_layer(axes, setting, "layer_losses")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bar: dict[str, Any] = {"marker": "_", "markersize": 18, "markeredgewidth": 2}
    bar |= {"color": BOUND, "linestyle": "", "label": "bound (constrained)"}
    for variant in setting.of("constrained"):
        axes.plot(setting.layers, variant.mean("bounds"), **bar)
    if axes.dataLim.y1 >= LOG_RATIO * axes.dataLim.minposy:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _acceptance(axes: Axes, setting: Setting) -> None:
    _by_layer(axes, setting, "acceptance")
    axes.set_xticks(setting.layers)
    axes.yaxis.set_major_formatter("{x:.0%}")


def _ratios(axes: Axes, setting: Setting) -> None:
    for variant, style in _styled(setting):
        histograms = [run.evaluation["ratio_histogram"] for run in variant.runs]
        counts = np.sum([one["counts"] for one in histograms], axis=(0, 1))
        shares = 100.0 * counts / max(1, counts.sum())
        edges = np.array(histograms[0]["edges"], np.float64)
        # the last bin holds everything above its left edge
        if not np.isfinite(edges[-1]):
            edges[-1] = 2 * edges[-2] - edges[-3]
            ticks = np.linspace(0.0, edges[-2], 5)
            names = [f"{tick:g}" for tick in ticks]
            axes.set_xticks(ticks, [*names[:-1], f"≥ {names[-1]}"])
        mean, share = variant.mean("mean_ratio_all"), variant.mean("share_descending")
        style["label"] += f": mean {mean:.2f},\n{share:.1%} of steps descend"
        del style["marker"]
        axes.stairs(shares, edges, fill=True, alpha=0.25, color=style["color"])
        axes.stairs(shares, edges, linewidth=1.6, **style)
    _guide(axes.axvline, 1.0)


def _early_exit(axes: Axes, setting: Setting) -> None:
    for variant, style in _styled(setting):
        marker = style.pop("marker")
        for run in variant.runs:
            one = run.evaluation["early_exit"]
            curve = np.array(
                [one["curve"][key] for key in ("mean_depths", "accuracies")]
            )
            axes.plot(*curve[:, np.argsort(curve[0], kind="stable")], **style)
            chosen = one["mean_depth"], one["accuracy"]
            axes.plot(*chosen, marker, color=style["color"])
    axes.set_xlim(0, setting.num_layers)
    axes.yaxis.set_major_formatter("{x:.0%}")


def _multipliers(axes: Axes, setting: Setting, name: str = "multipliers") -> None:
    """Draws a column of the first constrained run, a curve for each layer with a
    bound."""
    run = setting.of("constrained")[0].runs[0]
    rows = run.rows("train")
    window = np.ones(max(1, round(len(rows) * SMOOTHING)))
    window /= window.sum()
    steps = np.convolve([row["step"] for row in rows], window, "valid")
    curves = run.by_layer("train", name).T
    shades = colormaps["viridis"](np.linspace(0.0, 0.88, len(curves)))
    for place, bound in enumerate(run.values("bounds")):
        if not np.isnan(bound):  # a layer without a bound has no constraint
            curve = np.convolve(curves[place], window, "valid")
            label = f"layer {setting.layers[place]}"
            axes.plot(steps, curve, color=shades[place], label=label)
    _guide(axes.axhline, 0.0)


def _violations(axes: Axes, setting: Setting) -> None:
    """Draws violations on an axis that is linear about 0."""
    _multipliers(axes, setting, "violations")
    axes.set_yscale("symlog", linthresh=0.1, linscale=0.7)
    axes.yaxis.set_major_formatter("{x:g}")


def _by_layer(axes: Axes, setting: Setting, key: str) -> None:
    for variant, style in _styled(setting):
        # acceptance is by gamma first: at the least noise
        values = variant.stack(key).reshape(len(variant.runs), -1)
        _curve(axes, setting.layers, values[:, : len(setting.layers)], style)


def _curve(axes: Axes, x: Any, seeds: Array, style: dict[str, Any]) -> None:
    """Draws the mean over seeds, and a band from the smallest to the largest."""
    axes.plot(x, seeds.mean(0), markersize=5, **style)
    band: dict[str, Any] = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
    axes.fill_between(x, seeds.min(0), seeds.max(0), **band)


def _styled(setting: Setting) -> list[tuple[Variant, dict[str, Any]]]:
    """Variants with the style of their lines: colour and marker show the method, dashes
    separate variants of one method."""
    styled = []
    for method, (colour, marker) in STYLES.items():
        dashes = itertools.cycle(LINE_STYLES)
        for variant in setting.of(method):
            style = {"color": colour, "marker": marker, "linestyle": next(dashes)}
            styled.append((variant, {**style, "label": variant.title}))
    return styled


def _guide(line: Callable[..., Any], place: float, **label: str) -> None:
    line(place, color=GUIDE, linestyle=":", linewidth=1.2, **label)


def _all_have(key: str) -> Callable[[Setting], bool]:
    return lambda setting: all(variant.has(key) for variant in setting.variants)


def _trained(setting: Setting) -> bool:
    return any(one.runs[0].rows("train") for one in setting.of("constrained")[:1])


BANDS = "Lines are means over seeds, bands reach from the smallest to the largest."
FIGURES = {
    "layer_losses": Kind(
        _layer_losses,
        f"Loss on the test split after every layer. {BANDS}",
        "layer (0: embedded input)",
        "{spec.loss}",
    ),
    "score_curve": Kind(
        _score_curve,
        "The {spec.title} on the test split against the strength of its noise. Dashed:"
        f" without a network. {BANDS}",
        "{spec.gamma}",
        "{spec.label}",
        lambda setting: len(setting.gammas) > 1,
    ),
    "frontier": Kind(
        _frontier,
        "The score of every variant at two strengths of noise. Open markers: not"
        " feasible.",
        "at the training gamma",
        "at the largest test gamma",
        lambda setting: len(setting.variants) > 3,
    ),
    "ratios": Kind(
        _ratios,
        "Change of the loss of single samples by a layer, all layers together."
        " Constraints bind the mean of samples, not each of them.",
        "per-sample ratio  f(l) / f(l − 1)",
        "share of steps (% per bin)",
    ),
    "early_exit": Kind(
        _early_exit,
        "Accuracy against the layers run, over all thresholds. Marked: those chosen on"
        " validation data.",
        "mean depth (layers run)",
        "{spec.label}",
        _all_have("early_exit"),
    ),
    "acceptance": Kind(
        _acceptance,
        "Share of test tokens at which a layer predicts the same as the last, at the"
        " least noise.",
        "layer that drafts (0: embedded input)",
        "acceptance",
        _all_have("acceptance"),
    ),
    "multipliers": Kind(
        _multipliers,
        "Multipliers by layer, of the first constrained run.",
        "training step",
        "multiplier λ (smoothed)",
        _trained,
    ),
    "violations": Kind(
        _violations,
        "Violations of the bounds by layer, of the first constrained run. Training"
        " enforces bounds that are tighter by --constraints.margin.",
        "training step",
        "violation (≤ 0: the bound holds)",
        _trained,
    ),
}
