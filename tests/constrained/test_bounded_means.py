"""Constraints on means over samples: against NumPy, exact in parts of a batch, and as a report tells them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.constrained.bounded_means import (
    bounded_class_losses,
    bounded_norm,
    bounded_violations,
    limits_report,
    limits_violations,
    with_columns,
)
from unroll_jax.train.parts import loss_gradient

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(12, 3)), np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0])
W, PRICES = np.array([0.5, -1.0, 2.0]), np.array([0.7, 0.3, 0.2])
BATCH = {"x": jnp.asarray(X, jnp.float32), "label": jnp.asarray(LABELS)}
LIMITS = (
    bounded_class_losses("loss", "nats", at_most=2.0, labels=lambda batch: batch["label"], class_names=("a", "b")),
    bounded_norm("norm", "", at_most=1.5),
)


def losses(w, batch):
    return (batch["x"] @ w)[:, None] ** 2


def test_violations_are_shares_of_the_bound():
    columns = with_columns(LIMITS, jnp.asarray(W), BATCH, losses(jnp.asarray(W), BATCH), None)
    squares = (X @ W) ** 2
    expected = [squares[k == LABELS].mean() / 2.0 - 1.0 for k in (0, 1)] + [np.linalg.norm(W) / 1.5 - 1.0]
    np.testing.assert_allclose(limits_violations(LIMITS, jnp.mean(columns, axis=0)[1:]), expected, rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_gradient_of_the_lagrangian_in_parts_is_that_of_the_formula(parts):
    def columns(w, batch, probe):
        return with_columns(LIMITS, w, batch, losses(w, batch), None), {}

    def value(samples):
        means = jnp.mean(samples, axis=0)
        return means[0] + jnp.vdot(jnp.asarray(PRICES, jnp.float32), limits_violations(LIMITS, means[1:])), None

    _, (gradient, _) = loss_gradient(columns, value, jnp.asarray(W), BATCH, lambda rows: None, parts=parts)
    slopes = 2.0 * (X @ W)[:, None] * X
    expected = slopes.mean(axis=0) + sum(PRICES[k] * slopes[k == LABELS].mean(axis=0) / 2.0 for k in (0, 1))
    np.testing.assert_allclose(gradient, expected + PRICES[2] * W / np.linalg.norm(W) / 1.5, rtol=1e-5)


def test_samples_that_weigh_differently_do_so_in_means():
    counts = jnp.asarray(RNG.integers(1, 5, size=12), jnp.float32)
    columns = with_columns(LIMITS, jnp.asarray(W), BATCH, losses(jnp.asarray(W), BATCH), counts)
    norm = jnp.sum(columns[:, -1]) / jnp.sum(counts)
    np.testing.assert_allclose(norm, np.linalg.norm(W), rtol=1e-6)


def test_the_report_has_values_in_their_units_and_the_price_of_a_unit():
    means = jnp.array([0.5, 2.0, 0.5, 0.5, 3.0])  # class a at 1, b at 4; the norm at 3
    report = limits_report(LIMITS, means, jnp.array([0.0, 2.0, 0.3]), tolerance=0.05)
    assert {name: row["status"] for name, row in report["limits"].items()} == {
        "loss/a": "idle",
        "loss/b": "violated",
        "norm": "violated",
    }
    row = report["limits"]["loss/b"]
    assert (row["value"], row["bound"], row["unit"], row["price"]) == (4.0, 2.0, "nats", 1.0)
    assert not report["feasible"]


@pytest.mark.parametrize(
    "returned", [lambda w, batch: w, lambda w, batch: {"count": jnp.zeros(2, int)}, lambda w, batch: {}]
)
def test_what_is_no_dict_of_floating_numbers_is_one_line(returned):
    with pytest.raises(TypeError, match="constraints must return violations by name") as caught:
        bounded_violations(returned, lambda key: jnp.ones(3), losses, jax.eval_shape(lambda: BATCH))
    assert "\n" not in str(caught.value)
