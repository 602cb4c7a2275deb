"""Reports and pictures of any constraints, and multipliers that are a function of features."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import pytest

import unroll_jax as uj
from unroll_jax import constrained

matplotlib.use("agg")
VIOLATIONS = {"gap": np.array([0.2, -1.0]), "sum": np.array(0.0), "idle": np.array(-3.0)}
MULTIPLIERS = {"gap": np.array([3.0, 0.0]), "sum": np.array(-1.5), "idle": np.array(0.0)}
KINDS = {"gap": "at_most", "sum": "equal", "idle": "at_most"}


def test_a_report_tells_what_is_violated_binding_and_idle():
    report = uj.constraint_report(VIOLATIONS, MULTIPLIERS, kinds=KINDS, units={"gap": "rate", "sum": "", "idle": "MB"})
    assert {group.name: group.status for group in report.groups} == {
        "gap": "violated",
        "sum": "binding",
        "idle": "idle",
    }
    assert not report.feasible
    assert report.verdict == "Violated: gap by 0.2 rate. Binding: sum (1.5 of the objective for 1 unit). Idle: idle."
    assert len(str(report).splitlines()) == 5


@pytest.mark.parametrize(
    ("violation", "price", "options", "status"),
    [
        (0.0, 5e-5, {}, "idle"),
        (0.0, 5e-5, {"least_price": 1e-5}, "binding"),
        (-1.0, 17_500.0, {}, "slack"),
        (np.nan, 1.0, {}, "not finite"),
        (0.0, np.nan, {}, "not finite"),
        (np.nan, 1.0, {"absent": True}, "no samples"),
        (1.0, 1.0, {}, "violated"),
    ],
)
def test_statuses_of_a_constraint_are_apart(violation, price, options, status):
    report = uj.constraint_report(np.array(violation), np.array(price), **options)
    assert report.groups[0].status == status
    assert report.feasible == (status in ("idle", "binding", "slack"))
    assert report.status == ({"slack": "met, wound up"}.get(status, "met") if report.feasible else status)
    if status == "slack":
        assert "its multiplier of 1.75e+04 has wound up" in report.verdict


def test_a_met_point_that_is_not_stationary_is_named():
    """As a method of multipliers whose inner problem is not solved leaves it."""
    point = np.array(0.0), np.array(2.0)
    moving = uj.constraint_report(*point, {"x": np.array([0.3, 0.4j])})
    assert (moving.feasible, moving.status, moving.gradient_norm) == (True, "met, not stationary", 0.5)
    assert moving.verdict.startswith("Every constraint is met, but the gradient of the Lagrangian has norm 0.5.")
    still = uj.constraint_report(*point, np.array(1e-3))
    assert still.status == "met"
    assert still.verdict.startswith("Every constraint is met and the point is stationary. Binding")
    assert uj.constraint_report(*point, np.array(np.nan)).status == "not finite"


def test_values_and_bounds_are_in_the_units_of_the_user():
    report = uj.constraint_report({"a": np.array([-1.0, 0.5])}, {"a": np.zeros(2)}, bounds={"a": 3.0}, units="MB")
    assert (report.groups[0].value, report.groups[0].bound) == (3.5, 3.0)
    assert str(report).split()[:5] == ["constraint", "kind", "status", "value", "bound"]


def test_traced_violations_are_an_error_of_one_line():
    with pytest.raises(TypeError, match="violations must be known"):
        jax.jit(lambda c: uj.constraint_report(c, c).feasible)(jnp.ones(2))


def test_an_equality_is_violated_in_either_direction():
    for value in (-0.1, 0.1):
        assert not uj.constraint_report(np.array(value), np.array(0.0), kinds="equal").feasible
    assert uj.constraint_report(np.array(-0.1), np.array(0.0)).feasible
    assert uj.constraint_report(np.array(0.1), np.array(0.0), tolerance=0.2).feasible


def test_pictures_have_axes_units_and_names():
    report = uj.constraint_report(VIOLATIONS, MULTIPLIERS, kinds=KINDS, units={"gap": "rate", "sum": "", "idle": "MB"})
    axes = report.plot()
    assert axes.get_xlabel() == "worst violation"
    assert [label.get_text().splitlines() for label in axes.get_yticklabels()] == [
        ["gap [rate]", "violated, price 3"],
        ["idle [MB]", "idle, price 0"],
        ["sum", "binding, price -1.5"],
    ]


def test_implicit_multipliers_ascend_the_violations_of_their_points():
    """Points with a positive feature are violated and others met: one weight learns to tell them apart."""
    duals = constrained.implicit_dual_ascent(lambda weights, x: x @ weights, optax.sgd(0.5))
    features = jnp.array([[1.0], [-1.0], [2.0], [-2.0]])
    violations = jnp.sign(features[:, 0])
    state, update = duals.init(jnp.zeros(1)), jax.jit(duals.update)
    for _ in range(20):
        state = update(state, violations, features)
    prices = duals.multipliers(state, jnp.array([[3.0], [-3.0]]))
    assert prices[0] > 1.0 > prices[1] > 0.0
    skipping = update(state, violations.at[1].set(jnp.nan), features)
    assert (int(state.skipped), int(skipping.skipped)) == (0, 1)
    np.testing.assert_array_equal(skipping.params, state.params)
