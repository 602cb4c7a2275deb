"""Figs. 1 to 4 as pictures, each with its numbers."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch, Rectangle

from papers.yang2022.config import FiguresConfig
from papers.yang2022.synthetic import (
    KAPPAS,
    MINIMISER_F,
    MINIMISER_H,
    RATIOS,
    WINDOW_1,
    WINDOW_4,
    AlternatingTrace,
    alternating_trace,
    descent_regions,
    principal_plane,
    proximal_regions,
)
from unroll_jax.train.report.page import GUIDE, WIDTH, tidy

Drawing = tuple[Figure, dict[str, Any]]  # a picture, and its numbers as JSON values

# Okabe-Ito: distinct under every common colour blindness.
BLUE = "#0072B2"
SKY = "#A6CEE8"
ORANGE = "#D55E00"
GREEN = "#009E73"
ZOOM = 8.0  # half the side of the enlarged square of Fig. 3
COORDINATES = ("coordinate 1 of y (no unit)", "coordinate 2 of y (no unit)")


def draw_descent_regions(config: FiguresConfig) -> Drawing:
    """Fig. 1: S(C) for two constants."""
    figure = Figure(figsize=(WIDTH, 6.0), layout="constrained")
    panels = figure.subplots(1, len(RATIOS), sharey=True)
    numbers = []
    regions = descent_regions(config.points)
    for axes, ratio, (inside, ball) in zip(panels, RATIOS, regions, strict=True):
        _draw_region(axes, inside, WINDOW_1)
        centre = np.asarray(ball.centre).tolist()
        radius = float(ball.radius)
        circle = Circle(tuple(centre), radius, fill=False, color=BLUE, linewidth=1.8)
        axes.add_patch(circle)
        axes.plot(*MINIMISER_F, "^", color=ORANGE, markersize=9)
        axes.plot(*MINIMISER_H, "s", color=GREEN, markersize=8)
        is_inside = bool(ball.inside)
        shape = (
            "a ball around y$_f^*$" if is_inside else "all but a ball around y$_h^*$"
        )
        tidy(axes, f"c$_h$ C / L$_f$ = {ratio}: {shape}")
        axes.set_xlabel(COORDINATES[0])
        numbers.append(
            {
                "ratio": ratio,
                "share_of_window": float(inside.mean()),
                "ball": {
                    "centre": centre,
                    "radius": radius,
                    "region_is_inside": is_inside,
                },
            }
        )
    panels[0].set_ylabel(COORDINATES[1])
    figure.suptitle(
        "Fig. 1: where a step of Algorithm 1 is guaranteed to lower h (Lemma 4.3)"
    )
    handles = [
        Patch(color=SKY, label="S(C): guaranteed"),
        Line2D([], [], color=BLUE, label="its boundary, a circle of Apollonius"),
        _marker("^", ORANGE, "y$_f^*$, minimiser of f"),
        _marker("s", GREEN, "y$_h^*$, minimiser of h"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure, {
        "minimiser_f": MINIMISER_F,
        "minimiser_h": MINIMISER_H,
        "half_side": WINDOW_1,
        "points": config.points,
        "panels": numbers,
    }


def draw_energy_and_trace(config: FiguresConfig) -> tuple[Drawing, Drawing]:
    """Figs. 2 and 3: h at every half step, and the points in their principal plane."""
    names = ("tokens", "width", "half_steps", "seed")
    shape = {name: getattr(config, name) for name in names}
    paper = alternating_trace(**shape, step_size=config.step_size)
    short = alternating_trace(**shape)
    longest = 1.0 / paper.smoothness["h"]
    energy = _energy_picture(paper, short, config.step_size, longest)
    numbers = {
        **shape,
        "smoothness": paper.smoothness,
        "longest_step_of_theorem_4_1": longest,
        "minimum": paper.minimum,
        "paper": {"step_size": config.step_size, **_trace_numbers(paper)},
        "longest": {"step_size": longest, **_trace_numbers(short)},
    }
    points, minimiser = principal_plane(paper.states, paper.minimiser)
    plane = {
        "step_size": config.step_size,
        "points": points.tolist(),
        "minimiser": minimiser.tolist(),
    }
    return (energy, numbers), (_trace_picture(points, minimiser), {**shape, **plane})


def draw_proximal_regions(config: FiguresConfig) -> Drawing:
    """Fig. 4: T(kappa) for four kappa."""
    regions = proximal_regions(config.points, config.seed)
    figure = Figure(figsize=(WIDTH + 2.0, 4.2), layout="constrained")
    panels = figure.subplots(1, len(KAPPAS), sharey=True)
    for axes, kappa, inside in zip(panels, KAPPAS, regions.inside, strict=True):
        _draw_region(axes, inside, WINDOW_4)
        axes.axhline(0.0, color=GUIDE, linewidth=0.8)
        axes.axvline(0.0, color=GUIDE, linewidth=0.8)
        axes.plot(*regions.minimiser, "s", color=GREEN, markersize=6)
        tidy(axes, f"κ = {kappa}: {inside.mean():.1%} of the square")
        axes.set_xlabel(COORDINATES[0])
    panels[0].set_ylabel(COORDINATES[1])
    figure.suptitle(
        "Fig. 4: the condition that ReLU adds (Theorem 5.1), for h(y) = |W y|² + |y"
        " − b|²"
    )
    quadrant = "axes: with ReLU, y lies in the upper right quadrant"
    handles = [
        Patch(color=SKY, label="T(κ): the condition holds"),
        _marker("s", GREEN, "y$_h^*$, minimiser of h"),
        Line2D([], [], color=GUIDE, linewidth=0.8, label=quadrant),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    shares = regions.inside.mean((1, 2)).tolist()
    return figure, {
        "half_side": WINDOW_4,
        "points": config.points,
        "seed": config.seed,
        "W": regions.W.tolist(),
        "b": regions.b.tolist(),
        "step_size": regions.step_size,
        "minimiser_h": regions.minimiser.tolist(),
        "share_of_window": dict(zip(map(str, KAPPAS), shares, strict=True)),
    }


def _marker(marker: str, colour: str, label: str) -> Line2D:
    options = {"linestyle": "", "markersize": 8, "color": colour, "label": label}
    return Line2D([], [], marker=marker, **options)


def _draw_region(axes: Axes, inside: np.ndarray, half_side: float) -> None:
    extent = (-half_side, half_side, -half_side, half_side)
    axes.imshow(
        inside,
        cmap=ListedColormap(["#FFFFFF", SKY]),
        vmin=0,
        vmax=1,
        origin="lower",
        extent=extent,
        interpolation="nearest",
    )
    axes.set(xlim=extent[:2], ylim=extent[2:], aspect="equal")


def _trace_numbers(trace: AlternatingTrace) -> dict[str, Any]:
    promised = np.sum(trace.ratio[:-1] <= trace.constant)
    descended = np.mean(np.diff(trace.energy[::2]) <= 0.0)
    return {
        "h": trace.energy.tolist(),
        "constant": trace.constant,
        "gradient_ratio": trace.ratio.tolist(),
        "full_steps_with_gradient_ratio_at_most_constant": int(promised),
        "share_of_full_steps_that_descend": float(descended),
    }


def _energy_picture(
    paper: AlternatingTrace, short: AlternatingTrace, step_size: float, longest: float
) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.subplots()
    of_paper = f"step {step_size:g}, the paper's"
    of_theorem = f"step {longest:.3g} = 1 / L$_h$, the longest that Theorem 4.1 allows"
    for trace, colour, label in (
        (paper, BLUE, of_paper),
        (short, ORANGE, of_theorem),
    ):
        values = np.log(trace.energy / trace.minimum)
        axes.semilogy(values, color=colour, linewidth=1.4, label=label)
    tidy(
        axes,
        "Fig. 2: alternating steps on f and g descend h, then swing around a level"
        " above its minimum",
    )
    axes.set(
        xlabel="half step t (gradient step on f, then on g)",
        ylabel="log h(Y$^{(t)}$) − log h(Y$_h^*$)",
    )
    axes.legend()
    return figure


def _trace_picture(points: np.ndarray, minimiser: np.ndarray) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    whole, near = figure.subplots(1, 2)
    line = {"color": BLUE, "linewidth": 0.9, "marker": ".", "markersize": 3}
    end = {"color": ORANGE, "markersize": 9, "label": "Y$_h^*$, minimiser of h"}
    for axes in (whole, near):
        axes.plot(*points.T, "-", label="trace of Y$^{(t)}$", **line)
        axes.plot(*minimiser, "^", **end)
        axes.plot(*points[0], "*", color=GREEN, markersize=12, label="Y$^{(0)}$")
        axes.set(
            xlabel="principal component 1 (units of Y)",
            ylabel="principal component 2 (units of Y)",
        )
    left, bottom = minimiser - ZOOM
    side = 2 * ZOOM
    square = Rectangle((left, bottom), side, side, fill=False, color=GUIDE)
    whole.add_patch(square)
    near.set(xlim=(left, left + side), ylim=(bottom, bottom + side))
    tidy(whole, "Fig. 3: trace in the plane of most variance")
    tidy(near, "the marked square, enlarged")
    whole.legend()
    return figure
