"""The rows of metrics.jsonl: what they say of equilibria, of their gradients and of the weights."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.supervised.conftest import traced
from tests.supervised.test_runs import small
from unroll_jax.fixed_point import equilibrium
from unroll_jax.train.step import describe_step, validate
from unroll_jax.train.tasks.image_models import adjoint_probe

pytestmark = pytest.mark.xdist_group("images")

ADJOINT = ("adjoint_residual", "adjoint_iterations", "adjoint_converged")


def train_row(config):
    """The row of the first step."""
    task, init, step = traced(config)
    _, metrics = step(init(), next(task.batches(0, None)))
    return describe_step(task, 1, jax.device_get(metrics))[0]


def validation_row(config):
    """The row of a validation before the first step, and the parameters validated."""
    task, init, _ = traced(config)
    state = init()
    return validate(task, state)[0], state.params


def network_of(config, **options):
    return dataclasses.replace(config, network=dataclasses.replace(config.network, **options))


@pytest.mark.slow
def test_rows_hold_the_residuals_and_iterations_of_both_solves():
    row = train_row(network_of(small("image-opteq"), tol=1e-5))
    for residual, iterations, converged in (("residual", "iterations", "converged"), ADJOINT):
        assert 0.0 < row[residual] <= 1e-5, residual
        assert row[iterations] >= 1.0, iterations
        assert row[converged] == 1.0, converged


@pytest.mark.slow
def test_an_adjoint_that_is_cut_short_is_seen_in_the_rows(monkeypatch):
    def hasty(*arguments, **options):
        return equilibrium(*arguments, **options, adjoint_max_steps=1, adjoint_tol=1e-6)

    monkeypatch.setattr("unroll_jax.models.opteq_base.equilibrium", hasty)
    row = train_row(network_of(small("image-opteq"), tol=2e-3))  # of no other test
    assert row["adjoint_residual"] > 1e-6
    assert row["adjoint_iterations"] <= 1.0
    assert row["adjoint_converged"] < 1.0


def test_where_no_adjoint_system_is_solved_there_is_no_figure():
    config = network_of(small("image-opteq"), num_steps=3, way="unrolled")
    row = train_row(config)
    assert [row[name] for name in ADJOINT] == [None] * 3
    assert row["residual"] is not None
    for way in ("unrolled", "averaged"):
        assert adjoint_probe(network_of(config, way=way).network, 8) is None


@pytest.mark.slow
def test_validation_rows_hold_the_norms_of_the_weights_in_the_order_of_the_layers():
    row, params = validation_row(network_of(small("image-opteq"), tol=1e-5))
    layers = [params["params"][name]["W"] for name in ("layer_1", "layer_2")]
    assert 0.0 < row["residual"] <= 1e-5
    norms = [np.linalg.norm(W, 2) for W in layers]
    np.testing.assert_allclose(row["weight_norms"], norms, rtol=1e-3)
    np.testing.assert_allclose(row["weight_norm_bounds"], norms, rtol=2e-3)
    assert all(bound >= norm * (1 - 1e-6) for bound, norm in zip(row["weight_norm_bounds"], norms, strict=True))
    estimated, _ = validation_row(network_of(small("image-opteq"), norm_steps=2))
    assert "weight_norms" in estimated
    assert "weight_norm_bounds" not in estimated, "which is not what they are divided by"
    assert not {"weight_norms", "weight_norm_bounds"} & validation_row(small("image-dnn"))[0].keys()
