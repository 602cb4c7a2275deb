"""The command `figures`, and Figs. 1 to 4 against the equations in NumPy."""

import dataclasses
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import solve_sylvester

from papers.yang2022 import FiguresConfig, draw, figures
from papers.yang2022.__main__ import main
from papers.yang2022.synthetic import KAPPAS, MINIMISER_F, MINIMISER_H, RATIOS

TOKENS, WIDTH, HALF_STEPS, SEED, POINTS = 6, 4, 10, 3, 21
SMALL = FiguresConfig(
    tokens=TOKENS, width=WIDTH, half_steps=HALF_STEPS, seed=SEED, points=POINTS
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("figures")
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "DPI", 30)
        draw(dataclasses.replace(SMALL, out=str(out)), log=lines.append)
    return (
        out,
        {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")},
        lines,
    )


def problem():
    generator = np.random.default_rng(SEED)
    S, W = (0.1 * generator.normal(size=(side, side)) for side in (TOKENS, WIDTH))
    B_1, B_2 = generator.random((2, TOKENS, WIDTH))
    return S, W, B_1, B_2, 2.0 * generator.random((TOKENS, WIDTH))


def gradients(Y):
    S, W, B_1, B_2, _ = problem()
    return 2.0 * (S.T @ S @ Y + Y - B_1), 2.0 * (Y @ W @ W.T + Y - B_2)


def height(Y):
    """h(Y) = |S Y|^2 + |Y - B_1|^2 + |Y W|^2 + |Y - B_2|^2."""
    S, W, B_1, B_2, _ = problem()
    return sum(np.sum(term**2) for term in (S @ Y, Y - B_1, Y @ W, Y - B_2))


def half_steps(step_size):
    states = [problem()[-1]]
    for number in range(HALF_STEPS):
        states.append(states[-1] - step_size * gradients(states[-1])[number % 2])
    return states


def test_figure_1_fills_the_points_of_lemma_4_3(drawn):
    ticks = np.linspace(-3.5, 3.5, POINTS)
    points = np.stack(np.meshgrid(ticks, ticks), axis=-1)
    to_f, to_h = (
        np.linalg.norm(points - np.array(end), axis=-1)
        for end in (MINIMISER_F, MINIMISER_H)
    )
    for panel, ratio in zip(drawn[1]["fig1"]["panels"], RATIOS, strict=True):
        assert panel["share_of_window"] == pytest.approx(
            np.mean(to_f <= ratio * to_h), abs=1e-12
        )
        assert panel["ball"]["region_is_inside"] == (ratio < 1)


@pytest.mark.parametrize("kind", ["paper", "longest"])
def test_figure_2_shows_h_after_each_gradient_step(drawn, kind):
    numbers = drawn[1]["fig2"]
    S, W, B_1, B_2, _ = problem()
    left, right = S.T @ S + np.eye(TOKENS), W @ W.T + np.eye(WIDTH)
    largest = {"f": 2.0 * np.linalg.norm(left, 2), "g": 2.0 * np.linalg.norm(right, 2)}
    largest["h"] = largest["f"] + largest["g"]
    assert numbers["smoothness"] == pytest.approx(largest, rel=1e-9)
    least = height(solve_sylvester(left, right, B_1 + B_2))
    assert numbers["minimum"] == pytest.approx(least, rel=1e-5)
    step_size = 0.05 if kind == "paper" else 1.0 / largest["h"]
    run = numbers[kind]
    assert run["step_size"] == pytest.approx(step_size)
    states = half_steps(step_size)
    heights = [height(Y) for Y in states]
    assert_allclose(run["h"], heights, rtol=1e-5)
    assert run["constant"] == pytest.approx(1.0 / (step_size * largest["g"]), rel=1e-5)
    of_f, of_g = np.moveaxis([gradients(Y) for Y in states[::2]], 1, 0)
    norm = lambda G: np.linalg.norm(G, axis=(1, 2))
    ratios = norm(of_f) / norm(of_f + of_g)
    assert_allclose(run["gradient_ratio"], ratios, rtol=1e-4)
    falls = np.mean(np.diff(heights[::2]) <= 0)
    assert run["share_of_full_steps_that_descend"] == falls


def test_figure_3_shows_the_states_in_their_principal_plane(drawn):
    states = np.stack([Y.ravel() for Y in half_steps(0.05)])
    centred = states - states.mean(0)
    expected = centred @ np.linalg.svd(centred)[2][:2].T
    points = np.array(drawn[1]["fig3"]["points"])
    assert_allclose(points @ points.T, expected @ expected.T, atol=1e-3)


def test_figure_4_fills_the_points_of_theorem_5_1(drawn):
    numbers, generator = drawn[1]["fig4"], np.random.default_rng(SEED)
    W, b = generator.normal(size=(2, 2)), generator.normal(size=2)
    curvature = W.T @ W + np.eye(2)
    ticks = np.linspace(-5.0, 5.0, POINTS)
    y = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    # of the longest step, 1 / L_h with L_h = 2 |curvature|
    p = (y @ curvature - b) / np.linalg.norm(curvature, 2)
    alignment = np.minimum(y**2 - p**2, 0.0).sum(axis=1) / np.sum(p**2, axis=1)
    for kappa in KAPPAS:
        share = numbers["share_of_window"][str(kappa)]
        assert share == pytest.approx(np.mean(alignment >= -kappa))
    assert_allclose(curvature @ numbers["minimiser_h"], b, atol=1e-12)


def test_what_the_user_can_mend_is_told_in_one_line(capsys):
    assert main(["--only", "5"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    for word in ("--data.root", "glue/SST-2/{train,dev,test}.tsv", "aclImdb"):
        assert word in line
