"""Constraints by name as columns of samples: against NumPy, exact in parts of a batch, and in their report."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.limits import check_names, limits_of, limits_report, limits_violations, own_limit, with_columns
from unroll_jax.train.parts import loss_gradient

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(12, 3)), np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0])
W, PRICES = np.array([0.5, -1.0, 2.0]), np.array([0.7, 0.3, 0.2])
BATCH = {"x": jnp.asarray(X, jnp.float32), "label": jnp.asarray(LABELS)}


class Task:
    classes = ("a", "b")

    def labels(self, batch):
        return batch["label"]

    def trained(self, params):
        return None


LIMITS = limits_of(Task(), {"worst_class": 2.0, "norm": 1.5})


def losses(w, batch):
    return (batch["x"] @ w)[:, None] ** 2


def test_violations_are_shares_of_the_bound_and_a_class_without_samples_is_met():
    columns = with_columns(LIMITS, jnp.asarray(W), BATCH, losses(jnp.asarray(W), BATCH), None)
    squares = (X @ W) ** 2
    expected = [squares[k == LABELS].mean() / 2.0 - 1.0 for k in (0, 1)] + [np.linalg.norm(W) / 1.5 - 1.0]
    np.testing.assert_allclose(limits_violations(LIMITS, jnp.mean(columns, axis=0)[1:]), expected, rtol=1e-5)
    one = limits_violations(LIMITS, jnp.array([1.0, 0.0, 0.5, 0.0, 1.5]))
    np.testing.assert_allclose(one, [0.0, 0.0, 0.0], atol=1e-6)


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
    np.testing.assert_allclose(jnp.sum(columns[:, -1]) / jnp.sum(counts), np.linalg.norm(W), rtol=1e-6)


def test_the_report_has_values_in_their_units_and_the_price_of_a_unit():
    means = jnp.array([0.5, 2.0, 0.5, 0.5, 3.0])  # class a at 1, b at 4; the norm at 3
    report = limits_report(LIMITS, means, jnp.array([0.0, 2.0, 0.3]), tolerance=0.05)
    status = {name: row["status"] for name, row in report["limits"].items()}
    assert status == {"worst_class/a": "idle", "worst_class/b": "violated", "norm": "violated"}
    row = report["limits"]["worst_class/b"]
    assert (row["value"], row["bound"], row["unit"], row["price"]) == (4.0, 2.0, "nats", 1.0)
    assert not report["feasible"]


@pytest.mark.parametrize(
    "returned", [lambda w, batch: w, lambda w, batch: {"count": jnp.zeros(2, int)}, lambda w, batch: {}]
)
def test_what_is_no_dict_of_floating_numbers_is_one_line(returned):
    with pytest.raises(TypeError, match="constraints must return violations by name") as caught:
        own_limit(returned, lambda key: jnp.ones(3), losses, jax.eval_shape(lambda: BATCH))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("returned", [{"a": {"b": 5.0}, "a/b": -1.0}, {"": 1.0}, {"a": {"": 1.0}}], ids=str)
def test_equal_and_empty_names_are_an_error_before_the_first_step(returned):
    limit = own_limit(lambda w, batch: jax.tree.map(jnp.asarray, returned), lambda key: jnp.ones(3), losses, BATCH)
    with pytest.raises(UserError, match=r"constraints must have a name each, got '(a/b|a/|)' twice or empty"):
        check_names(["layer 1", *limit.names])
