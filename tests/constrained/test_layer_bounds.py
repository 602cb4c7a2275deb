"""Bounds of layers in every form, their report on held-out data, suggestions and
warnings, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from unroll_jax.constrained import descent_warnings, level_constraints, suggest_alpha
from unroll_jax.constrained.layer_bounds import FORMS, relative_excess

LOSSES = np.random.default_rng(0).uniform(0.5, 6.0, size=(2, 3, 4))
SAMPLES = np.random.default_rng(0).uniform(0.5, 1.5, size=(40, 4)) * np.array(
    [4.0, 3.2, 3.0, 1.0]
)
MULTIPLIERS = np.array([0.1, 0.0, 1.5, 0.4])
ALPHA, REFERENCE, FLOOR = np.array([0.1, 0.2, 0.3]), 5.0, 3.0
KEPT = 1.0 - ALPHA
CUMULATIVE = {"reference": REFERENCE, "bounds": "cumulative"}
COMPARED = {
    "difference": lambda f, b: f - b,
    "ratio": lambda f, b: f / b - 1,
    "log_ratio": lambda f, b: np.log(f / b),
}


def bounds_of(losses, floor=0.0):
    first = np.full_like(losses[..., :1], REFERENCE)
    return np.concatenate([first, np.maximum(KEPT * losses[..., :-1], floor)], axis=-1)


STATED = {
    "stepwise": (
        lambda form: uj.descent_constraints(ALPHA, reference=REFERENCE, form=form),
        bounds_of,
    ),
    "floor": (
        lambda form: uj.descent_constraints(
            ALPHA, reference=REFERENCE, floor=FLOOR, form=form
        ),
        lambda losses: bounds_of(losses, FLOOR),
    ),
    "cumulative": (
        lambda form: uj.descent_constraints(
            ALPHA, floor=FLOOR, form=form, **CUMULATIVE
        ),
        lambda losses: np.broadcast_to(
            [REFERENCE, *np.maximum(REFERENCE * np.cumprod(KEPT), FLOOR)], losses.shape
        ),
    ),
    "levels": (
        lambda form: level_constraints([4.0, 3.0, 2.0, 1.0], form=form),
        lambda losses: np.broadcast_to([4.0, 3.0, 2.0, 1.0], losses.shape),
    ),
    "levels without f_0": (
        lambda form: level_constraints([3.0, 2.0, 1.0], form=form),
        lambda losses: np.broadcast_to([3.0, 2.0, 1.0], (*losses.shape[:-1], 3)),
    ),
    "level": (
        lambda form: level_constraints(2.0, form=form),
        lambda losses: np.full_like(losses[..., 1:], 2.0),
    ),
}


@pytest.mark.usefixtures("x64")
def test_violations_bounds_and_excess_are_those_of_numpy():
    """Every form of every bound for two batch axes, and every bound for one and for
    none, in one program."""
    made = {
        (name, form): make(form) for name, (make, _) in STATED.items() for form in FORMS
    }
    cases = [(name, form, 0) for name, form in made] + [
        (name, "difference", axes) for name in STATED for axes in (1, 2)
    ]
    batches = LOSSES, LOSSES[0], LOSSES[0, 0]

    def results(batches, name, form, place):
        constraints, losses = made[name, form], batches[place]
        violations, bounds = constraints(losses), constraints.bounds(losses)
        return violations, bounds, relative_excess(violations, bounds, form=form)

    actual = jax.jit(lambda batches: [results(batches, *case) for case in cases])(
        batches
    )
    for (name, form, place), results_of_case in zip(cases, actual, strict=True):
        losses = batches[place]
        bounds = STATED[name][1](losses)
        bounded = losses[..., losses.shape[-1] - bounds.shape[-1] :]
        expected = COMPARED[form](bounded, bounds), bounds, bounded / bounds - 1
        for ours, theirs in zip(results_of_case, expected, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-12, err_msg=f"{name}, {form}"
            )
        if name in ("floor", "cumulative"):
            assert np.any(bounds == FLOOR)
            assert np.any((bounds != FLOOR) & (bounds != REFERENCE))


@pytest.mark.usefixtures("x64")
def test_gradients_are_those_of_finite_differences_and_a_proxy_has_none_in_the_loss_before():
    cases = [(form, proxy) for form in FORMS for proxy in (False, True)]
    made = [
        uj.descent_constraints(ALPHA, reference=REFERENCE, form=form, proxy=proxy)
        for form, proxy in cases
    ]
    losses, h = LOSSES[0, 0], 1e-6
    near = losses + h * np.stack([np.eye(4), -np.eye(4)])
    run = jax.jit(
        lambda losses, near: [(jax.jacobian(one)(losses), one(near)) for one in made]
    )
    for (form, proxy), (slope, (above, below)) in zip(
        cases, run(losses, near), strict=True
    ):
        expected = (above - below).T / (2 * h)
        expected = np.diag(np.diag(expected)) if proxy else expected
        np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-8, err_msg=form)


@pytest.mark.parametrize("form", ["ratio", "log_ratio"])
def test_losses_of_zero_give_numbers(form):
    constraints = uj.descent_constraints(0.5, form=form)
    losses = np.array(
        [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1e-10, 10.0], [1e-9, 1e4]], np.float32
    )
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(lambda f: constraints(f)[0])))(
        losses
    )
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(slopes))
    assert values[0] < 0.0 < values[4]
    # a loss of 0 leaves no share to remove
    np.testing.assert_array_equal(values[1:4], 0.0)


def test_a_bound_of_zero_has_an_excess_that_is_a_number():
    excess = relative_excess(
        jnp.array([0.0, -1.0, 24.0]), jnp.zeros(3), form="difference"
    )
    np.testing.assert_array_equal(excess[:2], [0.0, -1.0])
    assert 1e6 < excess[2] < np.inf


@pytest.mark.parametrize(
    "options",
    [
        {"form": "ratio"},
        {"form": "log_ratio"},
        {"reference": 2.0, "bounds": "cumulative"},
    ],
)
def test_no_layer_is_rewarded_for_a_larger_loss_but_in_differences(options):
    """With multipliers of any size no loss has a negative weight; the paper's
    difference has, and proxy=False."""
    multipliers, cases = (
        np.float32([0.0, 5.0, 9.0, 2.0]),
        [options, {}, options | {"proxy": False}],
    )

    @jax.jit
    def least_weights(losses):
        violations = [
            jax.vjp(uj.descent_constraints(0.3, **chosen), losses) for chosen in cases
        ]
        return [
            jnp.min(pull(multipliers[-value.size :])[0].at[-1].add(1.0))
            for value, pull in violations
        ]

    least, difference, without_proxy = least_weights(np.float32([4.0, 3.0, 2.5, 1.0]))
    assert difference < 0.0 <= least
    assert "bounds" in options or without_proxy < 0.0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tail", [None, 0.0, 0.75])
def test_a_report_has_losses_bounds_and_prices_of_layers_in_units_of_the_losses(
    form, tail
):
    """For means; under a tail the violations are of the worst 10 of 40 samples, and
    the bounds of the means."""
    constraints = uj.descent_constraints(ALPHA, reference=REFERENCE, form=form)
    reduction, means = (
        None if tail is None else uj.tail_mean(tail),
        SAMPLES.mean(axis=0),
    )
    report = uj.feasibility_report(
        SAMPLES, MULTIPLIERS, constraints, reduction=reduction, units="nats"
    )
    bounds, single = (
        bounds_of(means),
        np.sort(COMPARED[form](SAMPLES, bounds_of(SAMPLES)), axis=0),
    )
    violations = (
        COMPARED[form](means, bounds)
        if tail is None
        else single[round(40 * tail) :].mean(axis=0)
    )
    share = {
        "difference": violations / bounds,
        "ratio": violations,
        "log_ratio": np.expm1(violations),
    }[form]
    prices = MULTIPLIERS if form == "difference" else MULTIPLIERS / bounds
    columns = {
        "value": bounds * (1.0 + share),
        "bound": bounds,
        "worst": bounds * share,
        "tolerance": 0.05 * bounds,
        "price": prices,
        "slackness": np.abs(prices * bounds * share),
    }
    for name, expected in columns.items():
        actual = [getattr(group, name) for group in report.groups]
        np.testing.assert_allclose(
            actual, expected, rtol=1e-12, atol=1e-14, err_msg=name
        )
    assert [group.name for group in report.groups] == uj.constraint_names(
        3, reference=REFERENCE
    )
    assert [group.status == "violated" for group in report.groups] == (
        share > 0.05
    ).tolist()
    assert report.feasible == np.all(share <= 0.05)


@pytest.mark.parametrize(
    ("losses", "options", "status"),
    [
        ([100.0, 52.0], {}, "met"),  # 4% above a bound of 50
        ([100.0, 52.0], {"tolerance": 0.0}, "violated"),
        ([0.1, 0.0625], {}, "violated"),  # 25% above one of 0.05
        ([4.0, 2.0], {"tolerance": 0.0}, "met"),
        ([4.0, 2.125], {"tolerance": 0.0625}, "met"),
        ([4.0, 1.4], {}, "met, wound up"),  # 30%
        ([4.0, np.nan], {}, "not finite"),
        ([np.nan, 2.0], {}, "not finite"),
        ([np.inf, 2.0], {"reduction": lambda violations: jnp.zeros(1)}, "not finite"),
        ([4.0, 2.0], {"gradient": np.ones(2)}, "met, not stationary"),
    ],
)
def test_the_tolerance_is_a_share_of_the_bound_and_a_bound_that_is_just_met_is_met(
    losses, options, status
):
    report = uj.feasibility_report(
        jnp.array([losses]), jnp.ones(1), uj.descent_constraints(0.5), **options
    )
    assert report.status == status
    assert report.feasible == status.startswith("met")


@pytest.mark.parametrize("slack", [0.0, 0.2])
@pytest.mark.parametrize("first", [None, 2.3])
def test_the_suggested_alpha_ends_at_the_plain_loss(first, slack):
    losses = jnp.array([3.0, 2.0, 1.0, 0.25])
    alpha = suggest_alpha(losses, reference=first, slack=slack)
    constraints = uj.descent_constraints(
        alpha, reference=first or 3.0, bounds="cumulative"
    )
    assert float(constraints.bounds(losses)[-1]) == pytest.approx(0.25 * (1.0 + slack))


def test_healthy_runs_have_no_warnings_and_each_sign_has_one():
    healthy = {
        "layer_losses": [2.2, 1.6, 1.1, 0.5],
        "multipliers": [0.0, 0.5, 0.0, 0.0],
        "constraints": uj.descent_constraints(0.3, reference=2.3, bounds="cumulative"),
        "start_losses": [2.5, 2.4, 2.4, 2.4],
        "plain_losses": [2.6, 1.9, 1.2, 0.5],
    }
    short = {"plain_losses": [2.6, 1.9, 1.2, 0.9]}
    assert descent_warnings(**healthy) == descent_warnings(**healthy | short) == []
    for words, changed in (
        ("Multipliers end at 2.25", {"multipliers": [9.0, 0.0, 0.0, 0.0]}),
        ("f_0 rose from 2.6 to 61", {"layer_losses": [61.0, 1.6, 1.1, 0.5]}),
        (
            "The bound 0.789 of layer 3 is not met",
            short | {"layer_losses": [2.2, 1.6, 1.1, 0.8]},
        ),
    ):
        (line,) = descent_warnings(**healthy | changed)
        assert line.startswith(words)
