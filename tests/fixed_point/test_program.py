"""Programs of steps: compiled once outside of jit, one error where examples depend
on each other, and collectives."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.fixed_point.problems import inputs, relative_error, skew_weights
from tests.marks import types_unchecked
from tests.reference import compiled, jax_array
from unroll_jax import fixed_point as fp

SCALE = 1.0
# what compiles soonest, exact for slopes of up to a half
PLAIN = {"solver": "picard", "adjoint": fp.neumann(30)}


def test_later_calls_compile_nothing_and_see_changed_values(
    caplog,
):
    """A new function of the same body and other values reuse programs. Another
    constant is another program."""
    global SCALE
    weights = np.asarray(skew_weights(dtype=jnp.float32))
    x = np.asarray(inputs(4, 8, dtype=jnp.float32))
    zeros = np.zeros_like(x)
    for share, array, scale, is_new in (
        (0.9, x, 1.0, True),
        (0.5, 2.0 * x, 1.0, False),
        (1.0, x, 0.5, True),
    ):
        SCALE = scale
        A, array = jax_array(share * weights), jax_array(array)
        step = lambda A, z, none: jax.nn.relu(SCALE * (z @ A + array))  # noqa: B023
        # another code object
        step = (
            step if is_new else functools.partial(lambda same, *each: same(*each), step)
        )

        def solve(A):
            return uj.equilibrium(step, A, zeros, x, batch_ndim=1, **PLAIN)[0]  # noqa: B023

        caplog.clear()
        with jax.log_compiles():
            value, pull = jax.vjp(solve, A)
            slope = pull(value)[0]
        assert is_new == any(
            "Finished XLA compilation" in record.getMessage()
            for record in caplog.records
        )
        z = np.zeros((4, 8))
        for _ in range(80):
            z = np.maximum(scale * (z @ np.asarray(A) + np.asarray(array)), 0.0)
        assert relative_error(value, z) < 1e-4
        assert np.isfinite(slope).all()


X = np.float32([[1.0], [3.0], [1.0], [3.0]])
STATE = np.zeros(3, np.float32)
ONE = np.float32(1.0)


def test_examples_that_depend_on_each_other_need_batch_ndim_0():
    norm = lambda p, z, x: 0.3 * jnp.mean(z, 0) + x

    def solve(x, ndim):
        options = {"batch_ndim": ndim, "tol": 1e-6, **PLAIN}
        return uj.equilibrium(norm, (), np.zeros_like(X), x, **options)[0]

    words = r"batch_ndim=1 must not count an axis whose examples depend .*batch_ndim=0"
    with pytest.raises(ValueError, match=words):
        solve(X, 1)
    with pytest.raises(ValueError, match=r"example \d changes another"):
        jax.grad(lambda x: solve(x, 1)[0, 0])(X)
    gradient = compiled(jax.grad(lambda x: solve(x, 0)[0, 0]))(X)
    expected = np.eye(4, 1) + 0.3 / 4.0 / 0.7
    assert_allclose(gradient, expected, rtol=1e-4)


DEPENDENT = [  # shares of an example itself and of another, and which that is
    (0.5, [0.4] * 4, [1, 2, 3, 0]),
    (0.3, [0.3, 0.0, 0.0, 0.0], [1, 1, 2, 3]),  # only the first depends on another
    (0.0, [0.3] * 4, [2, 3, 0, 1]),  # rows of one parity
    (0.0, [0.3, 0.3, 0.3, np.nan], [1, 0, 2, 3]),
]


def test_dependence_is_found_whatever_earlier_values_show():
    """A gain of 0, the usual start of a norm, comes before. All are values of one
    program."""
    step = lambda p, z, x: p[0] * z + p[1] * z[p[2]] + x
    options = {"batch_ndim": 1, "on_failure": "accept", **PLAIN}
    for itself, other, row in DEPENDENT:
        other = np.float32(other)[:, None]
        for gain, outcome in (
            (0.0, contextlib.nullcontext()),
            (1.0, pytest.raises(ValueError, match="ndim=1 must")),
        ):
            params = itself, np.float32(gain) * other, np.array(row)
            with outcome:
                uj.equilibrium(step, params, 0.0 * X, X, **options)
    mean = lambda p, z, x: 0.3 * jnp.mean(z, 0, keepdims=True) + x
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match="batch_ndim=2 must"):
        uj.equilibrium(mean, (), 0.0 * ones, ones, batch_ndim=2, **PLAIN)


def test_dependence_of_a_condition_is_found():
    condition = lambda a, z: z - 0.3 * jnp.mean(z, 0) - a
    decorate = functools.partial(uj.implicit_root, condition, batch_ndim=1)
    solve, checked = (
        decorate(check=on)(lambda a, z0: X + np.float32(6.0 / 7.0))
        for on in (False, True)
    )
    with pytest.raises(ValueError, match="batch_ndim=1 must"):
        solve(X, X)
    with pytest.raises(jax.errors.JaxRuntimeError, match="pass batch_ndim=0"):
        jax.block_until_ready(compiled(checked)(X, X))


def slope_of(slope, constant=1.0):
    """The derivative of sum(z) in w at w = 1: 3 f(z) / (1 - s) for a rule of slope
    s, where f(z) = z = 2."""

    @jax.custom_vjp
    def f(z):
        return 0.5 * z + constant

    f.defvjp(lambda z: (f(z), None), lambda _, g: (slope @ g,))

    def solve(w):
        step = lambda w, z, x: f(z) * w
        return uj.equilibrium(step, w, STATE, tol=1e-6, **PLAIN)[0]

    return jax.vjp(solve, ONE)[1](STATE + ONE)[0]


def outside_of_jit(slopes):
    return [slope_of(slope) for slope in slopes]


def in_one_jit(slopes):
    return compiled(lambda: outside_of_jit(slopes))()


def of_jits(slopes):
    """Each is a value of a jit that is traced again."""
    return [compiled(lambda slope: slope_of(slope))(slope) for slope in slopes]


@pytest.mark.parametrize("way", [outside_of_jit, in_one_jit, of_jits])
def test_rules_that_close_over_other_arrays_are_other_programs(way):
    """Outside of jit, in one, and as values. Arrays of earlier rules may be gone."""
    kinds = [np.asarray] if way is of_jits else [jax_array, np.asarray]
    cases = list(itertools.product(kinds, (0.5, 0.1)))
    slopes = (kind(share * np.eye(3, dtype=np.float32)) for kind, share in cases)
    expected = [6.0 / (1.0 - share) for _, share in cases]
    assert_allclose(way(slopes), expected, rtol=1e-4)


@pytest.mark.parametrize("slope", [1.0, 0.5])
def test_rules_that_see_symbolic_zeros_are_other_programs(slope):
    """They differ only in the derivative in z. A derivative in both shows no
    difference."""

    @jax.custom_jvp
    def f(w, z):
        return 0.5 * w * z + 1.0

    def rule(primals, tangents):
        (w, z), zero = primals, jax.custom_derivatives.SymbolicZero
        share = slope if isinstance(tangents[0], zero) else 1.0
        dw, dz = (0.0 if isinstance(tangent, zero) else tangent for tangent in tangents)
        return f(w, z), 0.5 * (share * w * dz + z * dw)

    f.defjvp(rule, symbolic_zeros=True)

    def solve(w):
        step = lambda w, z, x: f(w, z)
        return uj.equilibrium(step, w, STATE, tol=1e-6, **PLAIN)[0]

    gradient = jax.vjp(solve, ONE)[1](STATE + ONE)[0]
    assert_allclose(gradient, 3.0 / (1.0 - 0.5 * slope), rtol=1e-4)


def test_rules_beside_constants_and_underived_steps_are_solved():
    def loop(z):
        return jax.lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, 0.5 * c[1] + 0.75), (0, z)
        )[1]

    def outside(z):
        move = lambda z: np.float32(0.5) * np.asarray(z) + ONE
        return jax.pure_callback(move, jax.ShapeDtypeStruct((3,), jnp.float32), z)

    for function, value in ((loop, 1.5), (outside, 2.0)):
        step = lambda w, z, x: jax.nn.relu(function(z))  # noqa: B023
        z, _ = uj.equilibrium(step, None, STATE, batch_ndim=1, solver="picard")
        assert_allclose(z, value, rtol=1e-4)

    slope = slope_of(0.5 * np.eye(3, dtype=np.float32), jax_array(STATE + 1.0))
    assert_allclose(slope, 12.0, rtol=1e-4)


def test_states_without_entries_are_solved():
    step = lambda w, z, x: 0.5 * z
    z, _ = uj.equilibrium(step, None, np.zeros((4, 0), np.float32), batch_ndim=1)
    assert z.shape == (4, 0)


def test_inside_of_jit_dependence_is_checked_on_request():
    """Of a share of the mean, a value: at 0 examples do not depend on each other."""
    step = lambda share, z, x: 0.3 * (share * jnp.mean(z, 0) + (1.0 - share) * z) + x

    @functools.partial(compiled, static_argnames="check")
    def solve(share, check):
        return uj.equilibrium(
            step, share, 0.0 * X, X, batch_ndim=1, solver="picard", check=check
        )[0]

    assert np.isfinite(solve(1.0, check=False)).all()
    with pytest.raises(jax.errors.JaxRuntimeError, match="pass batch_ndim=0"):
        jax.block_until_ready(solve(1.0, check=True))
    assert_allclose(solve(0.0, check=True), X / 0.7, rtol=1e-4)


def test_collectives_over_states_are_an_error_over_weights_not():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("data")
    ones = np.ones((2, 3), np.float32)

    def shard(step, spec):
        run = lambda x: uj.equilibrium(step, (), 0.0 * ones, x, batch_ndim=1)[0]
        return jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)

    averaging = lambda p, z, x: 0.5 * jax.lax.pmean(z, "data") + x
    with pytest.raises(
        ValueError, match=r"must not combine states over the axis 'data'.*lax.pmean"
    ):
        jax.eval_shape(shard(averaging, rows), ones)

    def one(x):
        return uj.equilibrium(
            lambda p, z, x: 0.5 * jax.lax.pmean(z, "i") + x, (), STATE, x
        )[0]

    with pytest.raises(ValueError, match="must not combine states over the axis 'i'"):
        jax.eval_shape(jax.vmap(one, axis_name="i"), ones)

    def parts(p, z, x):
        return (
            0.5 * z + jax.lax.psum(jax.lax.pcast(1.0, "data", to="varying"), "data") + x
        )

    z = compiled(shard(parts, PartitionSpec()))(ones)
    assert_allclose(z, 4.0, rtol=1e-4)


def test_states_judged_as_one_example_warn_of_far_rows():
    rates = np.float32([[0.5], [0.99]])
    x = np.float32([[1e6], [1.0]])
    with pytest.warns(
        fp.ConvergenceWarning,
        match="batch_ndim was not given .* 1 of 2 rows .* row 1 is at",
    ):
        uj.equilibrium(lambda p, z, x: p * z + x, rates, 0.0 * x, x, solver="picard")


CHANGED = STATE
CLOSED = {"batch_ndim": 0, "on_failure": "accept", "max_steps": 50}


def regularise(z):
    return jnp.sum((z - CHANGED) ** 2)


def move(point, memory):
    return point.fz + jnp.asarray(CHANGED), memory


def solve_adjoint(operator, v, tol, max_steps):
    return v + jnp.asarray(CHANGED), fp.one_step().solve(operator, v, tol, max_steps)[1]


# A user's functions that live as long as their solver and adjoint.
REGULARISED = fp.averaged(regularise, smoothness=2.0)
MOVING = fp.Solver(lambda z: (), move)
ADJOINT = fp.Adjoint(solve_adjoint, exact=False)


def solve(share, solver, x=1.0, adjoint="one_step"):
    step = lambda p, z, x: share * z + (1.0 - share) * x
    options = CLOSED | {"solver": solver, "adjoint": adjoint}
    return uj.equilibrium(step, (), STATE, x + STATE, **options)[0]


def solve_step(step):
    return uj.equilibrium(step, (), STATE, solver="picard", **CLOSED)[0]


READERS = {
    "step": lambda: solve_step(lambda p, z, x: 0.5 * z + CHANGED),
    "program in the step": lambda: solve_step(
        lambda p, z, x: jax.jit(lambda z: 0.5 * z + CHANGED)(z)
    ),
    "regulariser": lambda: solve(1.0, REGULARISED),
    "the same options": lambda: solve(1.0, fp.averaged(regularise, smoothness=2.0)),
    "solver": lambda: solve(0.5, MOVING),
    "adjoint": lambda: jax.vjp(
        lambda x: solve(0.5, "picard", x, adjoint=ADJOINT), STATE
    )[1](STATE + ONE)[0],
}


KINDS = {
    "replaced": STATE,
    "float64": np.zeros(3),
    "float32": np.zeros(3, np.float32),
    "scalar": np.zeros(()),
}


@types_unchecked
@pytest.mark.parametrize(
    ("reader", "kind"),
    [(reader, "float32") for reader in READERS]
    + [("step", kind) for kind in KINDS if kind != "float32"],
)
def test_a_value_that_changes_between_two_calls_is_seen(reader, kind):
    """An array of JAX that is replaced, and arrays of NumPy that change in place."""
    global CHANGED
    results = {0.0: [], 3.0: []}
    for values in ((0.0, 3.0), (3.0, 0.0)):
        CHANGED = KINDS[kind].copy()
        for value in values:
            if kind == "replaced":
                CHANGED = jax_array(np.full(3, value, np.float32))
            else:
                CHANGED[...] = value
            results[value].append(np.asarray(READERS[reader]()))
    low, high = results.values()
    assert_array_equal(low[0], low[1])
    assert_array_equal(high[0], high[1])
    assert np.abs(high[0] - low[0]).min() > 0.2
