"""Optimisers of multipliers against NumPy loops: controllers, and averages,
accumulation, warm-up, groups of optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.marks import in_float64
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.constrained import growing_penalty, nu_pi, proportional_integral

VIOLATIONS = gaussian(24, 3, seed=3)


def runs(cases, violations=VIOLATIONS, start=0.0, **options):
    duals = [uj.dual_ascent(optimizer, **options) for optimizer in cases]

    def step(states, row):
        states = [
            dual.update(state, row) for dual, state in zip(duals, states, strict=True)
        ]
        return states, [state.multipliers for state in states]

    @compiled
    def run(rows):
        states = [dual.init(rows.shape[1], start) for dual in duals]
        return jax.lax.scan(step, states, rows)[1]

    return run(violations)


def by_hand(rule, start=0.0):
    multipliers = np.full(3, start)
    after_calls = []
    for call, violation in enumerate(VIOLATIONS):
        multipliers = rule(call, violation, multipliers)
        after_calls.append(multipliers)
    return np.array(after_calls)


def in_calls(optimizer, count=2):
    """One step on the mean of ``count`` calls, accumulated in the precision of the
    multipliers."""
    return optax.MultiSteps(
        optimizer, count, accumulator_dtype=jnp.result_type(float)
    ).gradient_transformation()


@in_float64
def test_the_multiplier_is_integral_plus_proportional_part():
    """I <- [I + k_i c]_+, lambda = [I + k_p c]_+."""
    gains = (0.0, 0.7)
    integral = by_hand(lambda call, c, m: np.maximum(m + 0.1 * c, 0.0))
    actual = runs([proportional_integral(0.1, gain) for gain in gains])
    expected = [np.maximum(integral + gain * VIOLATIONS, 0.0) for gain in gains]
    assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


STARTS = [
    (0.0, "zero", 0.1),
    (0.6, "zero", 0.1),
    (-0.3, "zero", 0.1),
    (0.6, "sgd", 0.1),
    (0.6, "sgd", 0.0),
]


@in_float64
def test_nu_pi_equals_its_definition():
    """xi = nu xi + (1 - nu) c, lambda = [lambda + k_i c + k_p (change of xi)]_+;
    from "sgd" xi changes from c_1 on."""
    optimizers = [
        nu_pi(integral_gain, 0.7, nu=nu, start=start)
        for nu, start, integral_gain in STARTS
    ]
    for (nu, start, integral_gain), actual in zip(
        STARTS, runs(optimizers, start=0.3), strict=True
    ):
        first = 0 if start == "zero" else 1
        smoothed = by_hand(
            lambda call, c, xi: nu * xi + (1.0 - nu) * c if call >= first else xi  # noqa: B023
        )
        change = np.diff(smoothed, axis=0, prepend=0.0)
        expected = by_hand(
            lambda call, c, m: np.maximum(
                m + integral_gain * c + 0.7 * change[call],  # noqa: B023
                0.0,
            ),
            0.3,
        )
        assert 0.0 in expected
        assert_allclose(
            actual, expected, rtol=1e-12, atol=1e-13, err_msg=f"{nu} {start}"
        )


def test_each_row_starts_as_sgd_when_it_first_moves():
    init, update = uj.dual_ascent(nu_pi(0.5, 2.0, start="sgd"))

    @compiled
    def two_steps(first, second):
        return update(
            update(init(2), first, np.array([0])), second, np.array([1, 0])
        ).multipliers

    assert two_steps(np.ones(1), np.array([1.0, 3.0])).tolist() == [
        0.5 + 1.5 + 2.0 * 3.0,
        0.5,
    ]


CAPPED = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.1),
    "pi": proportional_integral(0.1, 0.5, cap=1.0),
    "nu_pi": nu_pi(0.1, 0.5),
}


def test_a_multiplier_stops_at_its_cap_without_windup():
    """After 1000 violated steps at the cap. An integral that had wound up to 100
    would hold it there for long."""
    violations = np.concatenate([np.ones((1000, 1)), -np.ones((20, 1))])
    for name, multipliers in zip(
        CAPPED, runs(CAPPED.values(), violations, cap=1.0), strict=True
    ):
        multipliers = multipliers[:, 0]
        assert multipliers[0] > 0.0, name
        assert np.all(np.diff(multipliers[:1000]) >= 0.0), name
        assert multipliers.max() == multipliers[999] == 1.0, name
        # Adam's moments need longer to turn.
        assert multipliers[-1] < 0.9 if name == "adam" else multipliers[-1] == 0.0, name


@in_float64
def test_all_options_together_equal_a_loop():
    """Warm-up, then means of two, less lambda / beta, their moving average,
    projected to [0, cap]. One stays."""
    start = np.array([0.2, 0.25, 0.0])
    rates = 5 * [0.25] + 5 * [0.125]
    one_still = np.array([1.0, 0.0, 1.0])
    multipliers = start.copy()
    expected = []
    pair = []
    seen = []
    for call, violation in enumerate(VIOLATIONS):
        if call >= 3:
            pair.append(violation)
            if len(pair) == 2:
                seen.append(np.mean(pair, axis=0) - multipliers / 3.0)
                gradient = np.average(
                    seen, axis=0, weights=0.8 ** np.arange(len(seen))[::-1]
                )
                multipliers = np.clip(
                    multipliers + rates[(call - 4) // 2] * gradient, 0.0, 0.3
                )
                multipliers[1], pair = start[1], []
        expected.append(multipliers.copy())
    moving = optax.stateless(lambda updates, _: one_still * updates)
    falling = optax.sgd(optax.piecewise_constant_schedule(0.25, {5: 0.5}))
    optimizer = in_calls(optax.chain(optax.ema(0.8), falling, moving))
    waiting = optax.conditionally_mask(optimizer, lambda step, **_: step >= 3)
    (actual,) = runs([waiting], start=start, resilience=3.0, cap=0.3)
    assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)
    assert np.max(actual) == 0.3  # the cap was met
    assert len(np.unique(actual[:, 0])) > 5  # and something moved


def test_each_group_has_its_optimiser_or_none():
    rates = {
        "one": proportional_integral(1.0, 0.0),
        "two": optax.adam(0.5),
        "still": optax.set_to_zero(),
    }
    labels = {"gap": "one", "deep": {"0": "two"}, "fixed": "still"}
    violations = {
        "gap": np.array([1.0, -1.0]),
        "deep": {"0": np.ones((2, 2))},
        "fixed": np.ones(()),
    }
    # a controller of inequalities moves none of these
    kinds = {"gap": "at_most", "deep": "equal", "fixed": "equal"}
    init, update = uj.dual_ascent(optax.partition(rates, labels), kinds=kinds)
    start = {"gap": 0.0, "deep": 0.0, "fixed": 3.0}
    multipliers = compiled(
        lambda violations: update(init(violations, start=start), violations).multipliers
    )(violations)
    assert multipliers["gap"].tolist() == [1.0, 0.0]
    assert_allclose(multipliers["deep"]["0"], 0.5, rtol=1e-4)
    assert float(multipliers["fixed"]) == 3.0


def test_restarts_and_penalties_wait_with_the_multipliers():
    restart = uj.dual_ascent(in_calls(optax.sgd(1.0)), restart=True)
    grow = uj.dual_ascent(in_calls(optax.sgd(1.0)), penalty=growing_penalty(1.0))

    def step(states, _):
        met, violated = states
        states = restart.update(met, -jnp.ones(1)), grow.update(violated, jnp.ones(1))
        return states, (states[0].multipliers[0], states[1].penalty[0])

    @compiled
    def run():
        start = restart.init(1, start=5.0), grow.init(1)
        return jax.lax.scan(step, start, length=4)[1]

    restarted, grown = run()
    assert restarted.tolist() == [5.0, 0.0, 0.0, 0.0]
    assert grown.tolist() == [1.0, 2.0, 2.0, 4.0]


REMEMBER = {
    "sgd": optax.sgd(0.005),
    "momentum": optax.sgd(0.005, momentum=0.9),
    "adam": optax.adam(0.1),
    "pi": proportional_integral(0.5, 1.0),
    "nu_pi": nu_pi(0.5, 1.0, nu=0.5),
    "average": optax.chain(optax.ema(0.9, debias=False), optax.sgd(0.1)),
    "groups": optax.partition(
        {"fast": optax.sgd(0.5, momentum=0.9), "slow": optax.adam(0.1)},
        {"a": "fast", "b": "slow"},
    ),
}


def test_a_restart_forgets_the_optimiser_of_a_met_constraint():
    """After five violations and one met call the next violation moves as from the
    start. A constraint that was never met goes on. Counters are shared, so Adam's are
    put back."""
    violated = {"a": jnp.ones(2), "b": jnp.ones(())}
    met = violated | {"a": jax_array([-1.0, 1.0])}

    def follow(optimizer):
        dual = uj.dual_ascent(optimizer, restart=True)
        fresh = dual.init(violated)
        first = dual.update(fresh, violated)
        state = first
        for each in [violated] * 4 + [met]:
            state = dual.update(state, each)
        counted = jax.tree.map(
            lambda new, leaf: new if leaf.dtype == jnp.int32 else leaf,
            fresh.opt_state,
            state.opt_state,
        )
        again = dual.update(state._replace(opt_state=counted), violated)
        return [each.multipliers for each in (first, state, again)]

    followed = compiled(lambda: {name: follow(one) for name, one in REMEMBER.items()})
    for name, (first, state, again) in followed().items():
        assert state["a"][0] == 0.0 < state["a"][1], name
        assert_allclose(again["a"][0], first["a"][0], rtol=1e-6, err_msg=name)
        assert again["a"][1] > 1.5 * first["a"][1], name
        assert again["b"] > 1.5 * first["b"], name
