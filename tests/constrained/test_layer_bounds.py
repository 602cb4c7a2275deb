"""Cumulative and absolute bounds of layers, their suggestions and warnings, against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.constrained import descent_warnings, level_constraints, suggest_alpha
from unroll_jax.constrained.layer_bounds import FORMS

LOSSES = np.random.default_rng(0).uniform(0.5, 6.0, size=(2, 3, 4))
ALPHA, REFERENCE, FLOOR = (0.1, 0.2, 0.3), 5.0, 3.0
CUMULATIVE = np.maximum(REFERENCE * np.cumprod(1.0 - np.array(ALPHA)), FLOOR)
COMPARED = {"difference": lambda f, b: f - b, "ratio": lambda f, b: f / b - 1, "log_ratio": lambda f, b: np.log(f / b)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_cumulative_bounds_and_levels_are_those_of_numpy(form, rank):
    losses = LOSSES[(0,) * (2 - rank)]
    bounds = np.array([REFERENCE, *CUMULATIVE])
    assert CUMULATIVE[2] == FLOOR
    cumulative = uj.descent_constraints(ALPHA, reference=REFERENCE, bounds="cumulative", floor=FLOOR, form=form)
    for constraints in (cumulative, level_constraints(bounds, form=form)):
        np.testing.assert_allclose(constraints(jnp.asarray(losses)), COMPARED[form](losses, bounds), rtol=1e-12)
    np.testing.assert_allclose(cumulative.bounds(jnp.asarray(losses)), np.broadcast_to(bounds, losses.shape))
    without = level_constraints(bounds[1:], form=form)(jnp.asarray(losses))
    alone = level_constraints(bounds[-1:], form=form)(jnp.asarray(losses))
    np.testing.assert_array_equal(alone, without[..., -1:])
    np.testing.assert_allclose(without, COMPARED[form](losses[..., 1:], bounds[1:]), rtol=1e-12)
    np.testing.assert_allclose(level_constraints(2.0)(jnp.asarray(losses)), losses[..., 1:] / 2.0 - 1.0, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
def test_a_floor_holds_under_stepwise_bounds_too(form):
    constraints = uj.descent_constraints(ALPHA, floor=FLOOR, form=form)
    bounds = np.maximum((1.0 - np.array(ALPHA)) * LOSSES[..., :-1], FLOOR)
    assert np.any(bounds == FLOOR)
    assert np.any(bounds > FLOOR)
    np.testing.assert_allclose(constraints(jnp.asarray(LOSSES)), COMPARED[form](LOSSES[..., 1:], bounds), rtol=1e-12)


@pytest.mark.parametrize(
    "options", [{"form": "ratio"}, {"form": "log_ratio"}, {"reference": 2.0, "bounds": "cumulative"}]
)
def test_no_layer_is_rewarded_for_a_larger_loss_unless_asked(options):
    """With multipliers of any size no loss has a negative weight; the paper's difference has, and proxy=False."""
    losses, multipliers = jnp.array([4.0, 3.0, 2.5, 1.0]), jnp.array([0.0, 5.0, 9.0, 2.0])

    def weights(**chosen):
        def value(losses):
            violations = uj.descent_constraints(0.3, **chosen)(losses)
            return uj.lagrangian(losses[-1], violations, multipliers[-violations.size :])

        return jax.grad(value)(losses)

    assert np.all(np.asarray(weights(**options)) >= 0.0)
    assert float(jnp.min(weights())) < 0.0
    if "bounds" not in options:
        assert float(jnp.min(weights(proxy=False, **options))) < 0.0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["ratio", "log_ratio"])
@pytest.mark.parametrize("options", [{}, {"reference": 2.0, "bounds": "cumulative"}], ids=["stepwise", "cumulative"])
def test_one_dual_rate_gives_losses_of_any_unit_the_same_multipliers(form, options):
    """Losses of .06 and of 110 with proportional references: the same multipliers after ten steps."""
    init, update = uj.dual_ascent(optax.sgd(0.1))
    ends = []
    for unit in (0.06, 110.0):
        scaled = {name: unit * value if name == "reference" else value for name, value in options.items()}
        constraints = uj.descent_constraints(0.3, form=form, **scaled)
        state = init(constraints(jnp.ones(4)))
        for step in range(10):
            state = update(state, constraints(unit * jnp.asarray(LOSSES[0, step % 3])))
        ends.append(state.multipliers)
    assert np.any(np.asarray(ends[0]) > 0.0)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)


@pytest.mark.parametrize("slack", [0.0, 0.2])
@pytest.mark.parametrize("reference", [None, 2.3])
def test_the_suggested_alpha_ends_at_the_plain_loss(reference, slack):
    losses = np.array([3.0, 2.0, 1.0, 0.25])
    alpha = suggest_alpha(losses, reference=reference, slack=slack)
    first = 3.0 if reference is None else reference
    assert first * (1.0 - alpha) ** 3 == pytest.approx(0.25 * (1.0 + slack))
    constraints = uj.descent_constraints(alpha, reference=first, bounds="cumulative")
    assert float(constraints(jnp.asarray(losses, jnp.float32))[-1]) == pytest.approx(
        1.0 / (1.0 + slack) - 1.0, abs=1e-6
    )


def test_healthy_runs_have_no_warnings_and_each_sign_has_one():
    constraints = uj.descent_constraints(0.3, reference=2.3, bounds="cumulative")
    healthy = {"constraints": constraints, "start_losses": [2.5, 2.4, 2.4, 2.4], "plain_losses": [2.6, 1.9, 1.2, 0.5]}
    losses, multipliers = [2.2, 1.6, 1.1, 0.5], [0.0, 0.5, 0.0, 0.0]
    assert descent_warnings(losses, multipliers, **healthy) == []
    for words, changed in (
        ("Multipliers end at 2.25 in the mean, above 1", {"multipliers": [9.0, 0.0, 0.0, 0.0]}),
        ("f_0 rose from 2.6 to 61", {"layer_losses": [61.0, 1.6, 1.1, 0.5]}),
        (
            "The bound 0.789 of layer 3 is not met and lies below 0.9",
            {"plain_losses": [2.6, 1.9, 1.2, 0.9], "layer_losses": [2.2, 1.6, 1.1, 0.8]},
        ),
    ):
        given = {"layer_losses": losses, "multipliers": multipliers} | healthy | changed
        (line,) = descent_warnings(given.pop("layer_losses"), given.pop("multipliers"), **given)
        assert line.startswith(words)
    assert descent_warnings(losses, multipliers, **healthy | {"plain_losses": [2.6, 1.9, 1.2, 0.9]}) == []


FOUR = np.array([4.7, 3.0, 3.5, 1.2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_violations_have_the_dtype_of_the_losses(dtype):
    losses = jnp.asarray(FOUR, dtype)
    for reference_value in (None, np.float64(5.0)):
        assert uj.descent_constraints(0.2, reference=reference_value)(losses).dtype == losses.dtype


def test_a_schedule_may_come_as_an_array():
    constraints = uj.descent_constraints(np.linspace(0.1, 0.3, 3))
    expected = reference.violations(FOUR, np.linspace(0.1, 0.3, 3))
    np.testing.assert_allclose(constraints(jnp.asarray(FOUR, jnp.float32)), expected, rtol=1e-5)


@pytest.mark.parametrize("reference", [None, 5.0])
@pytest.mark.parametrize("num_layers", [1, 4])
def test_there_is_one_name_a_constraint_in_its_order(num_layers, reference):
    names = uj.constraint_names(num_layers, reference=reference)
    # Only the constraint of the last layer is violated.
    losses = jnp.array([4.0 * 0.5**layer for layer in range(num_layers)] + [100.0])
    violations = uj.descent_constraints(0.2, reference=reference)(losses)
    assert len(names) == len(set(names)) == violations.size
    assert names[int(jnp.argmax(violations))] == f"layer {num_layers}"
    assert (names[0] == "f_0") is (reference is not None)
