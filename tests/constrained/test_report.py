"""Reports and pictures of any constraints."""

import matplotlib
import numpy as np
import pytest

from unroll_jax import constraint_report as report_of

matplotlib.use("agg")
VIOLATIONS = {
    "gap": np.array([0.2, -1.0]),
    "sum": np.array(0.0),
    "idle": np.array(-3.0),
}
MULTIPLIERS = {
    "gap": np.array([3.0, 0.0]),
    "sum": np.array(-1.5),
    "idle": np.array(0.0),
}
KINDS = {"gap": "at_most", "sum": "equal", "idle": "at_most"}
UNITS = {"gap": "rate", "sum": "", "idle": "MB"}


def test_a_report_names_and_draws_violated_binding_idle_constraints():
    report = report_of(VIOLATIONS, MULTIPLIERS, kinds=KINDS, units=UNITS)
    statuses = {group.name: group.status for group in report.groups}
    assert statuses == {"gap": "violated", "sum": "binding", "idle": "idle"}
    assert not report.feasible
    for text in ("Violated: gap by 0.2 rate", "Binding: sum (1.5", "Idle: idle"):
        assert text in report.verdict
    labels = [label.get_text() for label in report.plot().get_yticklabels()]
    assert [label.split()[0] for label in labels] == ["gap", "idle", "sum"]


def test_values_and_bounds_are_in_the_units_of_the_user():
    report = report_of(
        {"a": np.array([-1.0, 0.5])}, {"a": np.zeros(2)}, bounds={"a": 3.0}
    )
    assert (report.groups[0].value, report.groups[0].bound) == (3.5, 3.0)


@pytest.mark.parametrize(
    ("violation", "price", "options", "status"),
    [
        (0.0, 5e-5, {}, "idle"),
        (0.0, 5e-5, {"least_price": 1e-5}, "binding"),
        ([-1.0, 0.0], [17_500.0, 1.0], {}, "slack"),
        ([-1.0, 0.0], [17_500.0, 2e4], {}, "binding"),
        (np.nan, 1.0, {}, "not finite"),
        (0.0, np.nan, {}, "not finite"),
        (np.nan, 1.0, {"absent": True}, "no samples"),
        ([0.5, 0.2], [0.0, 0.0], {"tolerance": np.array([1.0, 0.1])}, "violated"),
        (-0.1, 0.0, {}, "idle"),
        (-0.1, 0.0, {"kinds": "equal"}, "violated"),
        (0.1, 0.0, {"kinds": "equal"}, "violated"),
    ],
)
def test_statuses_of_a_constraint_are_apart(violation, price, options, status):
    """An equality is violated in either direction. A multiplier with room has wound
    up, and its price is none."""
    report = report_of(np.array(violation), np.array(price), **options)
    assert report.groups[0].status == status
    assert (report.groups[0].worst > report.groups[0].tolerance) is (
        status == "violated"
    )
    assert report.feasible == (status in ("idle", "binding", "slack"))
    # also with a binding constraint of a larger price
    wound_up = bool(np.max(price) > 17_000.0)
    assert report.status == (
        ("met, wound up" if wound_up else "met") if report.feasible else status
    )
    assert ("1.75e+04, wound up unless" in report.verdict) is wound_up
    assert ("Binding" in report.verdict) is (status == "binding")


def test_a_met_point_that_is_not_stationary_is_named():
    """As a method of multipliers whose inner problem is not solved leaves it."""
    point = np.array(0.0), np.array(2.0)
    moving = report_of(*point, {"x": np.array([0.3, 0.4j])})
    assert moving.status == "met, not stationary"
    assert (moving.feasible, moving.gradient_norm) == (True, 0.5)
    assert moving.verdict.startswith("Every constraint is met, but the gradient")
    still, broken = (report_of(*point, np.array(slope)) for slope in (1e-3, np.nan))
    assert still.status == "met"
    assert "the point is stationary" in still.verdict
    assert broken.status == "not finite"
    assert "nan" in broken.verdict
