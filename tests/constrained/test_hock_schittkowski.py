"""32 problems of Hock and Schittkowski's collection under the augmented Lagrangian, solved and judged by the report.

Source: Hock, Schittkowski, "Test examples for nonlinear programming codes" (1981), the published tables: objective,
start, constraints and optimal value. Inequalities there are g >= 0, here -g <= 0.
"""

from math import log, pi, sqrt

import jax
import jax.numpy as jnp
import optax
import pytest

import unroll_jax as uj

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("x64")]

STEPS, PENALTY, DUAL_RATE, SOLVED = 20_000, 10.0, 0.1, 1e-3
LAST = 1_000  # steps whose mean is judged: at a constant rate Adam does not come to rest


def squares(*x):
    return sum(one**2 for one in x)


def objective_76(a, b, c, d):
    return a**2 + 0.5 * b**2 + c**2 + 0.5 * d**2 - a * c + c * d - a - 3 * b + c - d


def objective_100(a, b, c, d, e, f, g):
    first = (a - 10) ** 2 + 5 * (b - 12) ** 2 + c**4 + 3 * (d - 11) ** 2 + 10 * e**6
    return first + 7 * f**2 + g**4 - 4 * f * g - 10 * f - 8 * g


def inequalities_43(a, b, c, d):
    return [
        8 - squares(a, b, c, d) - a + b - c + d,
        10 - a**2 - 2 * b**2 - c**2 - 2 * d**2 + a + d,
        5 - 2 * a**2 - b**2 - c**2 - 2 * a + b + d,
    ]


def inequalities_76(a, b, c, d):
    return [5 - a - 2 * b - c - d, 4 - 3 * a - b - 2 * c + d, b + 4 * c - 1.5, a, b, c, d]


def inequalities_100(a, b, c, d, e, f, g):
    return [
        127 - 2 * a**2 - 3 * b**4 - c - 4 * d**2 - 5 * e,
        282 - 7 * a - 3 * b - 10 * c**2 - d + e,
        196 - 23 * a - b**2 - 6 * f**2 + 8 * g,
        -4 * a**2 - b**2 + 3 * a * b - 2 * c**2 - 5 * f + 11 * g,
    ]


def within(x, lower, upper):
    """Bounds of variables."""
    return [x[i] - low for i, low in enumerate(lower)] + [up - x[i] for i, up in enumerate(upper)]


def none(*x):
    return []


# Number: objective, equalities h = 0, inequalities g >= 0, start, optimal value.
PROBLEMS = {
    6: (lambda a, b: (1 - a) ** 2, lambda a, b: [10 * (b - a**2)], none, (-1.2, 1), 0.0),
    7: (lambda a, b: jnp.log(1 + a**2) - b, lambda a, b: [(1 + a**2) ** 2 + b**2 - 4], none, (2, 2), -sqrt(3)),
    8: (lambda a, b: -1.0 + 0.0 * a, lambda a, b: [squares(a, b) - 25, a * b - 9], none, (2, 1), -1.0),
    9: (lambda a, b: jnp.sin(pi * a / 12) * jnp.cos(pi * b / 16), lambda a, b: [4 * a - 3 * b], none, (0, 0), -0.5),
    10: (lambda a, b: a - b, none, lambda a, b: [-3 * a**2 + 2 * a * b - b**2 + 1], (-10, 10), -1.0),
    11: (lambda a, b: (a - 5) ** 2 + b**2 - 25, none, lambda a, b: [b - a**2], (4.9, 0.1), -8.498464223),
    12: (
        lambda a, b: 0.5 * a**2 + b**2 - a * b - 7 * a - 7 * b,
        none,
        lambda a, b: [25 - 4 * a**2 - b**2],
        (0, 0),
        -30.0,
    ),
    13: (lambda a, b: (a - 2) ** 2 + b**2, none, lambda a, b: [(1 - a) ** 3 - b, a, b], (-2, -2), 1.0),
    14: (
        lambda a, b: (a - 2) ** 2 + (b - 1) ** 2,
        lambda a, b: [a - 2 * b + 1],
        lambda a, b: [1 - 0.25 * a**2 - b**2],
        (2, 2),
        9 - 2.875 * sqrt(7),
    ),
    15: (
        lambda a, b: 100 * (b - a**2) ** 2 + (1 - a) ** 2,
        none,
        lambda a, b: [a * b - 1, a + b**2, 0.5 - a],
        (-2, 1),
        306.5,
    ),
    21: (
        lambda a, b: 0.01 * a**2 + b**2 - 100,
        none,
        lambda a, b: [10 * a - b - 10, *within([a, b], (2, -50), (50, 50))],
        (-1, -1),
        -99.96,
    ),
    22: (lambda a, b: (a - 2) ** 2 + (b - 1) ** 2, none, lambda a, b: [2 - a - b, b - a**2], (2, 2), 1.0),
    24: (
        lambda a, b: ((a - 3) ** 2 - 9) * b**3 / (27 * sqrt(3)),
        none,
        lambda a, b: [a / sqrt(3) - b, a + sqrt(3) * b, 6 - a - sqrt(3) * b, a, b],
        (1, 0.5),
        -1.0,
    ),
    26: (
        lambda a, b, c: (a - b) ** 2 + (b - c) ** 4,
        lambda a, b, c: [(1 + b**2) * a + c**4 - 3],
        none,
        (-2.6, 2, 2),
        0.0,
    ),
    27: (lambda a, b, c: 0.01 * (a - 1) ** 2 + (b - a**2) ** 2, lambda a, b, c: [a + c**2 + 1], none, (2, 2, 2), 0.04),
    28: (lambda a, b, c: (a + b) ** 2 + (b + c) ** 2, lambda a, b, c: [a + 2 * b + 3 * c - 1], none, (-4, 1, 1), 0.0),
    29: (lambda a, b, c: -a * b * c, none, lambda a, b, c: [48 - a**2 - 2 * b**2 - 4 * c**2], (1, 1, 1), -16 * sqrt(2)),
    30: (
        squares,
        none,
        lambda a, b, c: [a**2 + b**2 - 1, *within([a, b, c], (1, -10, -10), (10, 10, 10))],
        (1, 1, 1),
        1.0,
    ),
    34: (
        lambda a, b, c: -a,
        none,
        lambda a, b, c: [b - jnp.exp(a), c - jnp.exp(b), *within([a, b, c], (0, 0, 0), (100, 100, 10))],
        (0, 1.05, 2.9),
        -log(log(10)),
    ),
    35: (
        lambda a, b, c: 9 - 8 * a - 6 * b - 4 * c + 2 * a**2 + 2 * b**2 + c**2 + 2 * a * b + 2 * a * c,
        none,
        lambda a, b, c: [3 - a - b - 2 * c, a, b, c],
        (0.5, 0.5, 0.5),
        1 / 9,
    ),
    37: (
        lambda a, b, c: -a * b * c,
        none,
        lambda a, b, c: [72 - a - 2 * b - 2 * c, a + 2 * b + 2 * c, *within([a, b, c], (0, 0, 0), (42, 42, 42))],
        (10, 10, 10),
        -3456.0,
    ),
    39: (lambda a, b, c, d: -a, lambda a, b, c, d: [b - a**3 - c**2, a**2 - b - d**2], none, (2, 2, 2, 2), -1.0),
    40: (
        lambda a, b, c, d: -a * b * c * d,
        lambda a, b, c, d: [a**3 + b**2 - 1, a**2 * d - c, d**2 - b],
        none,
        (0.8, 0.8, 0.8, 0.8),
        -0.25,
    ),
    42: (
        lambda a, b, c, d: squares(a - 1, b - 2, c - 3, d - 4),
        lambda a, b, c, d: [a - 2, c**2 + d**2 - 2],
        none,
        (1, 1, 1, 1),
        28 - 10 * sqrt(2),
    ),
    43: (
        lambda a, b, c, d: a**2 + b**2 + 2 * c**2 + d**2 - 5 * a - 5 * b - 21 * c + 7 * d,
        none,
        inequalities_43,
        (0, 0, 0, 0),
        -44.0,
    ),
    48: (
        lambda a, b, c, d, e: (a - 1) ** 2 + (b - c) ** 2 + (d - e) ** 2,
        lambda a, b, c, d, e: [a + b + c + d + e - 5, c - 2 * (d + e) + 3],
        none,
        (3, 5, -3, 2, -2),
        0.0,
    ),
    71: (
        lambda a, b, c, d: a * d * (a + b + c) + c,
        lambda a, b, c, d: [squares(a, b, c, d) - 40],
        lambda a, b, c, d: [a * b * c * d - 25, *within([a, b, c, d], (1,) * 4, (5,) * 4)],
        (1, 5, 5, 1),
        17.0140173,
    ),
    76: (objective_76, none, inequalities_76, (0.5,) * 4, -4.681818181),
    77: (
        lambda a, b, c, d, e: (a - 1) ** 2 + (a - b) ** 2 + (c - 1) ** 2 + (d - 1) ** 4 + (e - 1) ** 6,
        lambda a, b, c, d, e: [a**2 * d + jnp.sin(d - e) - 2 * sqrt(2), b + c**4 * d**2 - 8 - sqrt(2)],
        none,
        (2,) * 5,
        0.24150513,
    ),
    78: (
        lambda a, b, c, d, e: a * b * c * d * e,
        lambda a, b, c, d, e: [squares(a, b, c, d, e) - 10, b * c - 5 * d * e, a**3 + b**3 + 1],
        none,
        (-2, 1.5, 2, -1, -1),
        -2.91970041,
    ),
    79: (
        lambda a, b, c, d, e: (a - 1) ** 2 + (a - b) ** 2 + (b - c) ** 2 + (c - d) ** 4 + (d - e) ** 4,
        lambda a, b, c, d, e: [a + b**2 + c**3 - 2 - 3 * sqrt(2), b - c**2 + d + 2 - 2 * sqrt(2), a * e - 2],
        none,
        (2,) * 5,
        0.0787768209,
    ),
    100: (objective_100, none, inequalities_100, (1, 2, 0, 4, 0, 1, 1), 680.6300573),
}


def solve(number):
    """The reports and the errors of the objective, of Adam at 3e-2 under cosine decay and at 1e-2."""
    objective, equalities, inequalities, start, optimum = PROBLEMS[number]

    def problem(x):
        zero, positive = equalities(*x), inequalities(*x)
        violations = {"equal": jnp.stack(zero)} if zero else {}
        return objective(*x), violations | ({"at_most": -jnp.stack(positive)} if positive else {})

    start = jnp.asarray(start, float)
    shapes = jax.eval_shape(problem, start)[1]
    kinds = {name: name for name in shapes}
    dual = uj.dual_ascent(optax.sgd(DUAL_RATE), kinds=kinds, penalty=PENALTY)

    def run(rates):
        adam = optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(lambda count: -rates[count]))
        optimizer = uj.primal_dual(adam, dual, violations=shapes, order="primal_dual")

        def step(carry, count):
            x, state, mean = carry

            def value(x):
                options = {"penalty": state.dual.penalty, "kinds": kinds}
                return uj.augmented_lagrangian(*problem(x), state.dual.multipliers, **options)

            updates, state = optimizer.update(jax.grad(value)(x), state, x, problem=problem)
            now = optax.apply_updates(x, updates), uj.multipliers_of(state)
            share = 1.0 / jnp.maximum(count - (STEPS - LAST) + 1, 1)
            return (now[0], state, optax.incremental_update(now, mean, share)), None

        first = optimizer.init(start)
        end, _ = jax.lax.scan(step, (start, first, (start, uj.multipliers_of(first))), jnp.arange(STEPS))
        x, prices = end[2]
        gradient = jax.grad(lambda x: uj.lagrangian(*problem(x), prices))(x)
        return problem(x), prices, gradient

    rates = jnp.stack([jax.vmap(optax.cosine_decay_schedule(3e-2, STEPS))(jnp.arange(STEPS)), jnp.full(STEPS, 1e-2)])
    ends = jax.device_get(jax.jit(jax.vmap(run))(rates))
    outcome = []
    for place in range(2):
        (value, violations), prices, gradient = jax.tree.map(lambda leaf, place=place: leaf[place], ends)
        report = uj.constraint_report(violations, prices, gradient, kinds=kinds, tolerance=SOLVED)
        error = abs(value - optimum) / max(1.0, abs(optimum))
        outcome.append((bool(error < SOLVED and report.feasible), report, error))
    return outcome


def test_most_problems_are_solved_and_no_failure_is_reported_as_solved():
    outcomes = {number: solve(number) for number in PROBLEMS}
    assert len(outcomes) == 32
    for place, least in ((0, 29), (1, 26)):
        failed = {number: each[place] for number, each in outcomes.items() if not each[place][0]}
        assert len(outcomes) - len(failed) >= least, {
            number: (one[1].verdict, one[2]) for number, one in failed.items()
        }
        assert {number: one[1].verdict for number, one in failed.items() if one[1].status == "met"} == {}
