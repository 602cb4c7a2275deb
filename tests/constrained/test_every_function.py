"""Every public function: traced values out of range and NaN give NaN, float16 is
summed in float32."""

import functools
import inspect
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.constrained import calls, test_errors
from tests.constrained.calls import (
    NAN,
    ONES,
    RATIO,
    SGD,
    STEPWISE,
    gap,
    kl,
    norm,
    of_classes,
    rate,
    sized,
    violation,
)
from tests.marks import types_unchecked
from tests.reference import compiled, jax_array
from unroll_jax import constrained as c

pytestmark = types_unchecked
TWO = jax_array(np.ones(2), np.float32)
THREE = jax_array(np.ones(3), np.float32)
MINUS = np.float32(-1.0)
LOG_RATIO = c.descent_constraints(0.2, form="log_ratio")
LAYER = c.descent_constraints(0.2, num_layers=1)["layer 1"]
CUMULATIVE = c.descent_constraints(0.2, reference=4.0, bounds="cumulative")


def traced(table):
    @functools.cache
    def results():
        @compiled
        def run(arrays):
            return {name: row[0](arrays[name]) for name, row in table.items()}

        return run({name: jnp.asarray(row[1]) for name, row in table.items()})

    return results


def update_of(optimizer, gradient):
    return optimizer.update(gradient, optimizer.init(jnp.zeros(3)), jnp.zeros(3))[0]


# Functions of a traced array; the array; and where the result must be NaN, in its
# shape.
TRACED = {
    "gap, group": (lambda g: gap(TWO, g), np.array([1, 2]), [[True] * 2] * 2),
    "class_losses, label": (
        lambda y: of_classes(THREE, y),
        np.array([-1, 1, 1]),
        [True] * 3,
    ),
    "rate, weight": (lambda w: rate(THREE, where=lambda batch: w), -ONES, True),
    "kl, weight": (
        lambda w: kl(jnp.ones((3, 2)), jnp.ones((3, 2)), where=lambda batch: w),
        -ONES,
        True,
    ),
    "count": (lambda n: sized(1.0, count=n), MINUS, True),
    "lagrangian, multiplier": (
        lambda m: c.lagrangian(1.0, THREE, m, kinds="at_most"),
        -ONES,
        True,
    ),
    "lagrangian, equality": (
        lambda m: c.lagrangian(1.0, THREE, m, kinds="equal"),
        -ONES,
        False,
    ),
    "lagrangian with a penalty, multiplier": (
        lambda m: c.lagrangian(1.0, THREE, m, penalty=1.0),
        -ONES,
        True,
    ),
    "lagrangian, penalty": (
        lambda p: c.lagrangian(1.0, THREE, THREE, penalty=p),
        MINUS,
        True,
    ),
    "lagrangian with slacks": (
        lambda s: c.lagrangian(1.0, THREE, THREE, slacks=s, resilience=1.0),
        -ONES,
        True,
    ),
    "ratio of a negative loss": (RATIO, np.float32([4.0, -1.0, 1.0]), [True] * 2),
    "log of a negative loss": (LOG_RATIO, np.float32([4.0, 2.0, -1.0]), [False, True]),
    "take_rows": (
        lambda rows: c.take_rows(THREE, rows),
        np.array([0, 3, -1]),
        [False, True, True],
    ),
    "cross entropy, label": (
        lambda y: cross_entropy(y),
        np.array([0, -100, 8]),
        [False, True, True],
    ),
    "cross entropy, weight": (
        lambda w: cross_entropy(w=w),
        np.float32([1.0, -1.0, 0.0]),
        [False, True, False],
    ),
    "a state's multiplier": (
        lambda m: stepped(m),
        np.float32([-1.0, 0.0, 1.0]),
        [True, False, False],
    ),
}


def cross_entropy(y=None, w=None, h=None):
    labels = jnp.arange(3) if y is None else y
    hidden = jnp.ones((3, 4)) if h is None else h
    return c.chunked_cross_entropy(hidden, jnp.ones((8, 4)), labels, w)


def stepped(multipliers):
    ascent = c.dual_ascent(SGD)
    return ascent.update(
        ascent.init(3)._replace(multipliers=multipliers), THREE
    ).multipliers


OUT_OF_RANGE = traced(TRACED)


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_value_out_of_range_gives_nan(name):
    assert_array_equal(np.isnan(OUT_OF_RANGE()[name]), TRACED[name][2], strict=True)


MANY = 70_000


def relaxed(violations, **options):
    """The Lagrangian at multipliers of 0."""
    return c.lagrangian(0.0, violations, jnp.zeros_like(violations), **options)


# Functions of values; where results of `BROKEN` must be NaN; and the result of 70,000
# float16 values of 1, which float16 neither counts nor sums.
FIRST = [True, False, False]
SUMS = {
    "rate": (rate, True, 0.8),
    "gap": (
        lambda z: gap(z, jnp.arange(len(z)) % 2),
        [[True] * 2] * 2,
        [[-0.25] * 2] * 2,
    ),
    "class_losses": (
        lambda f: of_classes(f, jnp.arange(len(f)) % 3),
        FIRST,
        [0.0] * 3,
    ),
    "norm": (lambda w: norm({"w": 300.0 * w[:4]}), True, 599.0),
    "kl": (
        lambda z: kl(jnp.stack([z, z], -1), jnp.zeros_like(z, shape=(len(z), 2))),
        True,
        -0.1,
    ),
    "lagrangian with a penalty": (lambda v: relaxed(v, penalty=2.0), True, MANY),
    "lagrangian with slacks": (
        lambda v: relaxed(v, slacks=jnp.ones_like(v), resilience=2.0),
        True,
        MANY,
    ),
    "tail_mean": (lambda v: c.tail_mean(0.5)(v[:, None]), [True], [1.0]),
    "mean": (lambda v: c.tail_mean(0.0)(v[:, None]), [True], [1.0]),
}
BROKEN = np.array([NAN, 3.0, 1.0], np.float32)
WITH_NAN = {
    name: (function, BROKEN, where) for name, (function, where, _) in SUMS.items()
}
WITH_NAN |= {
    "kl of a reference": (lambda z: kl(jnp.ones((1, 3)), z[None]), BROKEN, True),
    "constraint": (sized, np.float32(NAN), True),
    "batch_violations": (
        lambda z: [
            each["a"]
            for each in c.batch_violations({"a": c.rate(at_most=0.2)}, z, None)
        ],
        BROKEN,
        [True] * 2,
    ),
    "lagrangian": (relaxed, BROKEN, True),
    "lagrangian, objective": (
        lambda f: c.lagrangian(f, THREE, jnp.zeros(3)),
        np.float32(NAN),
        True,
    ),
    "stepwise": (STEPWISE, BROKEN, [True, False]),
    "ratio": (RATIO, BROKEN, [True, False]),
    "log_ratio": (LOG_RATIO, BROKEN, [True, False]),
    "cumulative": (CUMULATIVE, BROKEN, FIRST),
    "levels": (c.level_constraints([1.0, 1.0, 1.0]), BROKEN, FIRST),
    "chunked_cross_entropy": (
        lambda h: cross_entropy(h=h[:, None] * jnp.ones(4)),
        BROKEN,
        FIRST,
    ),
    "nu_pi": (lambda g: update_of(c.nu_pi(0.1), g), BROKEN, FIRST),
    "proportional_integral": (
        lambda g: update_of(c.proportional_integral(0.1), g),
        BROKEN,
        FIRST,
    ),
}
OF_NAN = traced(WITH_NAN)


@pytest.mark.parametrize("name", WITH_NAN)
def test_nan_in_gives_nan_out_there_and_nowhere_else(name):
    assert_array_equal(np.isnan(OF_NAN()[name]), WITH_NAN[name][2], strict=True)


MANY_ONES = np.ones(MANY, np.float16)
HALF = {
    name: (function, MANY_ONES, value) for name, (function, _, value) in SUMS.items()
}
HALF |= {
    "lagrangian": (lambda v: c.lagrangian(0.0, v, v), MANY_ONES, MANY),
    "layers": (
        lambda f: violation(LAYER, jnp.stack([f, 0.5 * f], axis=-1)),
        MANY_ONES,
        -0.3,
    ),
}


OF_HALF = traced(HALF)


@pytest.mark.parametrize("name", HALF)
def test_sums_are_in_at_least_float32(name):
    assert np.shape(OF_HALF()[name]) == np.shape(HALF[name][2])
    assert_allclose(OF_HALF()[name], HALF[name][2], rtol=2e-3, atol=2e-4)


def test_a_report_of_layers_sums_in_at_least_float32():
    losses = MANY_ONES[:, None] * np.float16([1.0, 0.5])
    report = calls.report_of({"layer 1": LAYER}, losses)
    assert report.groups[0].value == pytest.approx(0.5, rel=1e-3)


def test_values_left_out_count_neither_in_values_nor_in_gradients():
    """Also NaN, and a label out of range, where the weight is 0; gradients in
    forward mode too."""
    mask = np.array([False, True, True])
    masks = np.array([[False, False], [True, False], [False, True]])
    there = {"where": lambda batch: mask}

    def constraints(logits):
        labels = jax_array([-100, 0, 1])
        pairs = logits[:, None] * jax_array([1.0, 2.0])
        parts = [
            rate(logits, **there),
            rate(logits, where=lambda batch: masks),
            gap(logits, jax_array([-1, 0, 1]), **there),
            of_classes(logits, labels, 2, **there),
            kl(pairs, jnp.zeros((3, 2)), **there),
        ]
        return sum(map(jnp.sum, parts))

    def total(logits):
        states = logits[:, None] * jnp.ones(4)
        losses = [
            cross_entropy(jnp.array([left_out, 0, 1]), mask * 1.0, states)
            for left_out in (-100, 10**6)
        ]
        return constraints(logits) + jnp.sum(jnp.stack(losses))

    def of_head(head):
        return jnp.sum(
            c.chunked_cross_entropy(BROKEN[:, None], head, jnp.arange(3), mask * 1.0)
        )

    @compiled
    def run(logits, head):
        slopes = [slope(constraints)(logits) for slope in (jax.jacfwd, jax.grad)]
        return jax.value_and_grad(total)(logits), jax.grad(of_head)(head), slopes

    (value, gradient), gradient_of_head, (forward, reverse) = run(
        np.float32([NAN, 2.0, -1.0]), np.ones((3, 1), np.float32)
    )
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert gradient[0] == 0.0
    assert np.isfinite(gradient_of_head).all()
    assert_allclose(forward, reverse, rtol=1e-6)


def test_an_empty_mean_is_unknown_in_reports_zero_in_training():
    constraints = {"loss": c.class_losses(3, at_most=1.0, labels=lambda labels: labels)}

    def report_of(sums):
        return c.held_out_report(
            constraints, sums, {"loss": np.zeros(3)}, tolerance=2.0
        )

    @compiled
    def run(losses, labels):
        both, pull = jax.vjp(
            lambda losses: c.batch_violations(constraints, losses, labels), losses
        )
        slope = pull(({"loss": jnp.ones(3)}, {"loss": jnp.zeros(3)}))[0]
        return (
            [each["loss"] for each in both],
            slope,
            c.column_sums(constraints, losses, labels),
        )

    violations, slope, sums = run(np.float32([3.0, 2.0]), np.array([0, 0]))
    assert_allclose(violations, np.tile([1.5, 0.0, 0.0], (2, 1)))
    assert_allclose(slope, [0.5, 0.5])
    report = report_of(sums)
    assert (report.groups[0].status, report.feasible) == ("no samples", False)
    assert report_of(
        jax.tree.map(np.add, sums, run(np.float32([0.5, 0.5]), np.array([1, 2]))[2])
    ).feasible


def test_a_violation_that_is_no_number_changes_nothing():
    optimizers = {"sgd": optax.sgd(0.5), "adam": optax.adam(0.5)}

    @compiled
    def run(value):
        results = {}
        for name, optimizer in optimizers.items():
            init, update = uj.dual_ascent(optimizer)
            sound = update(init(2), jnp.array([1.0, 2.0]))
            after = update(sound, jnp.array([value, 1.0]))
            results[name] = sound, after, update(after, jnp.ones(2)).multipliers
        return results

    for value in (np.nan, np.inf, -np.inf):
        for name, (sound, after, last) in run(value).items():
            words = f"{name}, {value}"
            assert after.skipped == 1, words
            kept = after._replace(skipped=sound.skipped)
            chex.assert_trees_all_equal(kept, sound, custom_message=words)
            assert np.all(last > sound.multipliers), words


def test_the_tables_have_every_public_function():
    modules = (calls, inspect.getmodule(traced), test_errors)
    text = "".join(map(inspect.getsource, modules))
    functions = [name for name in c.__all__ if inspect.isfunction(getattr(c, name))]
    assert not [name for name in functions if not re.search(rf"\bc\.{name}\b", text)]
