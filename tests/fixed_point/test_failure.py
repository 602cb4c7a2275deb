"""Solves that do not converge: an error, a warning or accepted, as asked, in both
passes, under every transform."""

import contextlib
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.fixed_point.problems import (
    factored_layer,
    finish,
    inputs,
    relative_error,
    skew_weights,
    tanh_step,
)
from tests.marks import in_float64, types_unchecked
from tests.reference import compiled
from unroll_jax import fixed_point
from unroll_jax.fixed_point import STATUS, ConvergenceError, ConvergenceWarning
from unroll_jax.fixed_point.reports import Reporting, call_site, report_failures
from unroll_jax.fixed_point.status import EquilibriumInfo

FORWARD = {"max_steps": 2, "solver": "picard"}
BACKWARD = {"adjoint_max_steps": 1, "adjoint_tol": 1e-6}


def value(x, **options):
    A = skew_weights(norm=0.9, dtype=jnp.float32)
    y, info = uj.equilibrium(
        tanh_step, A, np.zeros(x.shape, np.float32), x, batch_ndim=x.ndim - 1, **options
    )
    return jnp.sum(y**2), info


def gradient(x, **options):
    options = {"solver": "picard", "adjoint": "gmres"} | options
    return jax.grad(lambda x: value(x, **options)[0])(x)


def draw(*shape):
    return inputs(*shape, 8, dtype=jnp.float32)


TRANSFORMS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: jax.jit(jax.vmap(f)),
    "scan": lambda f: jax.jit(
        lambda x: jax.lax.scan(lambda carry, row: (carry, f(row)), 0.0, x)[1]
    ),
    "checkpoint": lambda f: jax.jit(jax.checkpoint(f)),
}
BOTH = ((value, FORWARD, "equilibrium"), (gradient, BACKWARD, "adjoint of equilibrium"))
LOUD = ": .* examples failed at tol.*reached max_steps.*raise"


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_either_pass_warns_unless_failure_is_accepted(
    transform,
):
    def run(x):
        return [
            [f(x, on_failure=outcome, **o) for f, o, _ in BOTH]
            for outcome in ("warn", "accept")
        ]

    with pytest.warns(ConvergenceWarning, match=LOUD) as caught:
        warned, accepted = finish(TRANSFORMS[transform](run)(draw(4)))
    messages = [str(warning.message) for warning in caught]
    # under vmap all examples are reported at once
    rows, times = (1, 4) if transform == "scan" else (4, 1)
    for _, _, what in BOTH:
        assert (
            sum(
                message.startswith(f"{what}: {rows} of {rows} examples")
                for message in messages
            )
            == times
        ), what
    assert relative_error(accepted, warned) == 0.0


def test_by_default_a_line_warns_once_and_is_named():
    @compiled
    def run(x):
        return value(x, **FORWARD)[0]

    with warnings.catch_warnings(record=True, action="default") as caught:
        for scale in (1.0, 2.0, 3.0):
            finish(run(scale * draw(4)))
    assert [warning.filename for warning in caught] == [__file__]
    assert "raise max_steps or tol" in str(caught[0].message)


PARTS = {
    "steps": lambda x: value(x, **FORWARD)[1].steps,
    "a gradient that holds no state": jax.grad(lambda x: linear(x).sum()),
    "a derivative forward": lambda x: jax.jvp(
        lambda x: linear(x, forward_mode=True), (x,), (x,)
    )[1],
}


def linear(x, **options):
    options |= FORWARD | {"adjoint": "neumann", "batch_ndim": 1}
    return uj.equilibrium(lambda w, z, x: 0.5 * z + x, (), 0.0 * x, x, **options)[0]


@pytest.mark.parametrize("part", PARTS)
def test_the_forward_solve_warns_whichever_part_is_kept(part):
    with pytest.warns(
        ConvergenceWarning,
        match="^equilibrium: .* after 2 steps; raise max_steps or tol",
    ):
        finish(compiled(PARTS[part])(draw(4)))


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (
            -2.0,
            "reached max_steps .* after 50 steps; raise max_steps .*spectral_normalise",
        ),
        (np.nan, "met a value that is not finite .*; look for NaN in params and x"),
        (-20.0, "met a value that is not finite .*; the iteration diverges: choose"),
    ],
)
def test_an_error_says_how_many_examples_failed_and_how(p, words):
    with pytest.raises(
        ConvergenceError,
        match=rf"^equilibrium: 5 of 5 examples failed at tol=1e-05; .*{words}.*$",
    ):
        uj.equilibrium(
            lambda p, z, x: p * z + 1.0,
            p,
            np.zeros((5, 3), np.float32),
            batch_ndim=1,
            on_failure="error",
            max_steps=50,
            solver="picard",
        )


@types_unchecked
@pytest.mark.parametrize(
    ("residual", "statuses", "error"),
    [
        ([1e-7, 1e-4, 2e-6], [0, 1, 0], None),
        ([1e-2, 1e-3, 1e-7], [1, 2, 0], f"1 of 3 .* example 1 {STATUS[2]}"),
        ([0.1, 0.5, 1e-7], [2, 2, 0], f"2 of 3 .* example 1 {STATUS[2]}"),
        ([0.5, np.nan, 0.1], [2, 3, 2], f"3 of 3 .* example 1 {STATUS[3]}"),
    ],
)
def test_the_worst_failure_is_named_and_stalls_are_none(residual, statuses, error):
    """Converged, stalled at round-off, cut off and not finite."""
    info = EquilibriumInfo(
        np.float32(residual), np.full(3, 7, np.int32), np.int32(statuses)
    )
    reporting = Reporting("error", 1e-5, call_site())
    raises = pytest.raises(ConvergenceError, match=error)
    with raises if error else contextlib.nullcontext():
        report_failures((), info, "solve", "raise max_steps", reporting)


def problem_of(sizes, square, dtype):
    dim, width, rows = sizes or (8, 0, 4)
    if sizes is None:
        layer = tanh_step
        params = skew_weights(norm=0.9, dtype=dtype)
        given = {"solver": "picard", "batch_ndim": 1}
    else:
        (layer, params), given = factored_layer(dim, width, square, "tanh", dtype), {}

    def solve(x, **options):
        return uj.equilibrium(
            layer, params, jnp.zeros((rows, dim), dtype), x, **given, **options
        )[0]

    return solve, inputs(rows, 3 if sizes else dim, dtype=dtype)


@pytest.mark.parametrize(
    "sizes",
    [
        None,
        *(pytest.param(s, marks=pytest.mark.slow) for s in ((8, 12, 16), (12, 48, 16))),
    ],
)
def test_a_nan_in_one_example_reaches_no_other_gradient(sizes):
    """Slow systems use the matrix that all examples of a factored layer share."""
    solve, clean = problem_of(sizes, 0.9999, jnp.float32)
    run = compiled(jax.grad(lambda x: jnp.sum(solve(x, on_failure="accept") ** 3)))
    dirty = 3.0 * np.asarray(clean)
    dirty[1] = np.nan
    expected = np.asarray(run(3.0 * clean))
    actual = np.asarray(run(dirty))
    assert np.isnan(actual[1]).any()
    errors = np.delete(actual, 1, 0), np.delete(expected, 1, 0)
    assert relative_error(*errors) <= (1e-3 if sizes else 0.0)


@pytest.mark.slow
@in_float64
@pytest.mark.parametrize("sizes", [None, (12, 48, 5), (8, 12, 1)])
def test_the_probe_carries_the_statistics_of_the_backward_solve_out(sizes):
    """A solve that ends, one to a looser tolerance, one after a single forward step,
    and one that is cut short."""
    solve, x = problem_of(sizes, 0.99, jnp.float64)
    ending = [{}, {"adjoint_tol": 1e-2}, {"max_steps": 1}]
    cut_short = {"adjoint_max_steps": 1, "on_failure": "warn"}

    def loss(probe, x, case):
        options = {"probe": probe, "tol": 1e-6, "on_failure": "accept"} | case
        return jnp.sum(solve(x, **options) ** 2)

    @compiled
    def run(x, probe):
        return [jax.grad(loss)(probe, x, case) for case in (*ending, cut_short)]

    with pytest.warns(
        ConvergenceWarning, match=f"^adjoint of equilibrium{LOUD} adjoint_max_steps"
    ):
        ends = finish(run(x, fixed_point.zero_probe(len(x))))
    # adjoints have 200 steps at least
    *infos, cut = ends
    for info, bound in zip(infos, (1e-6, 1e-2, 1e-6), strict=True):
        assert (info.residual <= bound).all()
        assert info.converged.all()
        assert (info.steps > 1).all()
    assert (infos[1].steps < infos[0].steps).all()
    assert (cut.residual > 1e-6).all()
    assert not cut.converged.any()
    assert (cut.steps <= 1).all()


LOPSIDED = next(
    text
    for text in STATUS
    if text.startswith("has a Jacobian that is not symmetric, which this method")
)


def test_an_asymmetric_jacobian_is_an_error_for_conjugate_gradients():
    options = {"adjoint": "conjugate_gradient", "on_failure": "error"}
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(LOPSIDED)):
        finish(compiled(lambda x: gradient(x, **options))(draw(4)))


@pytest.mark.slow
def test_a_solver_that_needs_symmetry_refuses_a_layer_without_it():
    """With and without vmap, also unrolled, where the residual meets this tolerance."""
    cases = {
        "accelerated_gradient": {"solver": "accelerated_gradient"},
        "unrolled": {
            "solver": "accelerated_gradient",
            "adjoint": "unrolled",
            "tol": 0.9,
        },
    }
    infos = lambda x: {name: value(x, **options)[1] for name, options in cases.items()}
    with pytest.warns(ConvergenceWarning, match=re.escape(LOPSIDED)) as caught:
        alone, mapped = finish(
            jax.jit(lambda x: (infos(x), jax.vmap(infos)(x)))(draw(2))
        )
    assert len(caught) == 2 * len(cases)
    for name in cases:
        for info in (alone[name], mapped[name]):
            assert {STATUS[status] for status in np.ravel(info.status)} == {LOPSIDED}, (
                name
            )
            assert not np.any(info.converged), name


def test_an_inexact_adjoint_by_choice_is_no_failure():
    """Two terms of the series are far from its limit here."""
    slope = lambda x, way: gradient(x, adjoint=way, on_failure="error")
    run = compiled(lambda x: (slope(x, fixed_point.neumann(2)), slope(x, "one_step")))
    assert np.isfinite(finish(run(draw(4)))).all()
