"""Properties of every system of `DESCENTS`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import unroll_jax as uj
from tests.energies.comparing import both, shapes_of
from tests.marks import in_float64, nightly
from tests.models.drawing import moved, vdot
from tests.reference import (
    compiled,
    directional_derivative,
    gaussian,
    gaussian_like,
    jax_array,
)
from unroll_jax.certificates import Outcome
from unroll_jax.energies import AttentionParams

BATCH = (2, 3)  # of all draws. An example does not depend on its batch, see below
KEYS = 200
SCALES = np.random.default_rng(2).permutation(np.logspace(-3.0, 3.0, KEYS))
# whose anchors mark keys or pairs
OF_KEYS = {"cross_attention", "fast_weights", "proximal_fast_weights"}
# keys, or a signal
NEED_THEIR_INPUT = OF_KEYS | {"lista", "dust"}
every_system = pytest.mark.parametrize("name", uj.DESCENTS)
both_dtypes = pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=nightly)]
)


@functools.cache
def many(name):
    """A layer, 200 draws of its parameters, state and input, and their steps in
    float32."""
    descents = []

    def one(key):
        key_example, key_init = jax.random.split(key)
        descent, y, x = uj.DESCENTS[name].example(key_example, BATCH)
        descents.append(descent)
        return descent.init(key_init), y, x

    @compiled
    def run(seed):
        keys = jax.random.split(jax.random.key(seed, impl="rbg"), KEYS)
        draws = jax.lax.map(one, keys)  # compiles quicker than vmap
        return draws, take_steps(name, descents[0], *draws)

    with jax.enable_x64(False):
        results = run(1)
        return descents[0], *results


def take_steps(name, descent, params, *tokens):
    """Whether the condition of a step holds, energies and tolerances, of each draw."""
    _, _, condition, event_ndim = uj.DESCENTS[name]

    def one(params, y, x, scale):
        y, x = jax.tree.map(lambda tokens: scale * tokens, (y, x))
        after = descent.step(params, y, x)
        assert (after.shape, after.dtype) == (y.shape, y.dtype)
        held = jnp.ones(BATCH, bool) if condition is None else condition(params, y, x)
        assert (held.shape, held.dtype) == (BATCH, bool)
        return held, *energies_and_roundoff(
            descent.energy, params, y, after, x, event_ndim
        )

    scales = jnp.asarray(SCALES, tokens[0].dtype)
    return jax.vmap(one)(params, *tokens, scales)


def draw(name, place, batch, dtype):
    descent, (params, y, x), _ = many(name)
    corner = (place, 0, 0)[: 3 - len(batch)]
    take = lambda tree, at: jax.tree.map(lambda leaf: leaf[at].astype(dtype), tree)
    return descent, take(params, place), *take((y, x), corner)


@every_system
def test_an_example_has_the_batch_asked_for(name):
    event_ndim = uj.DESCENTS[name].event_ndim
    for batch in ((), (3,)):  # all tests below draw (2, 3)
        leaves = jax.tree.leaves(shapes_of(name, batch)[2:])
        assert {leaf.shape[:-event_ndim] for leaf in leaves} == {batch}


def energies_and_roundoff(energy, params, y, stepped, x, event_ndim=2):
    """The energies of y and of the step, (2, *batch), and their tolerances, of
    round-off only. Each energy is computed as if its tokens and anchors were off by
    some units of round-off, and the step is rounded likewise, relative to the largest
    token or anchor. So: that relative error times the sum of |dE/dz| max|z| over all
    entries z of both points, plus the same share of the energy itself, 32 units, as
    sums have up to 20 terms.
    """
    event = tuple(range(-event_ndim, 0))
    largest = [
        jnp.max(jnp.abs(array), axis=event)
        for array in jax.tree.leaves((y, stepped, x))
    ]
    size = functools.reduce(jnp.maximum, largest)

    def total(*tokens):
        energies = energy(params, *tokens)
        assert (energies.shape, energies.dtype) == (y.shape[:-event_ndim], y.dtype)
        return jnp.sum(energies), energies

    def sensitivity(y):
        gradients, energies = jax.grad(total, (0, 1), has_aux=True)(y, x)
        slopes = [
            jnp.sum(jnp.abs(gradient), axis=event)
            for gradient in jax.tree.leaves(gradients)
        ]
        return energies, sum(slopes) * size + jnp.abs(energies)

    energies, sensitivities = jax.vmap(sensitivity)(jnp.stack([y, stepped]))
    return energies, 32.0 * jnp.finfo(y.dtype).eps * jnp.sum(sensitivities, axis=0)


@every_system
@both_dtypes
def test_every_step_lowers_its_energy_where_its_condition_holds(name, dtype):
    """200 random keys at once, tokens and anchors scaled over six orders of
    magnitude. Also shows that both map."""
    condition = uj.DESCENTS[name].condition
    descent, draws, results = many(name)
    if dtype == "float64":
        with jax.enable_x64(True):
            run = compiled(functools.partial(take_steps, name, descent))
            results = run(*jax.tree.map(np.float64, draws))
    held, energies, tolerance = results
    before, after = np.moveaxis(energies, 1, 0)[:, held]
    tolerance = tolerance[held]
    # a condition must hold often
    assert np.mean(held) >= (1.0 if condition is None else 0.3)
    assert np.all(np.isfinite(before) & np.isfinite(tolerance))
    rose = after > before + tolerance
    worst = np.argmax(after - before)
    assert not np.any(rose), (
        f"{name}: {np.mean(rose):.0%} of draws raise the energy, one from"
        f" {before[worst]:g} to {after[worst]:g}; see 'An energy rises' in"
        " docs/how_to/troubleshooting.md"
    )
    # by more than round-off: the step moves
    assert np.mean(after < before - tolerance) > 0.4


@in_float64
def test_the_check_finds_the_step_that_rises():
    """Theorem 3.1 of Yang et al. (2022) as printed, R = |Y|^2 / 2: a hub and six
    leaves."""
    leaves = np.concatenate([np.full((6, 1), 999.5), 2.0 * np.eye(6)], axis=1)
    y = jax_array(np.concatenate([1000.0 * np.eye(1, 7), leaves]))
    exact = uj.attention(ridge=1.0)
    printed = uj.attention(form="softmax")
    params = AttentionParams(None)

    @compiled
    def check(y):
        stepped = jnp.stack([layer.step(params, y) for layer in (printed, exact)])
        return jax.vmap(
            lambda after: energies_and_roundoff(exact.energy, params, y, after, None)
        )(stepped)

    for (before, after), tolerance, rises in zip(*check(y), (True, False), strict=True):
        assert (after > before + tolerance) == rises


@functools.cache
def batched(name):
    """Steps and energies of a batch, one by one and at once, with and without an
    input."""
    descent = many(name)[0]

    def all_of(*arrays):
        alone = descent.step(*arrays), descent.energy(*arrays)
        at_once = descent.step_and_energy and descent.step_and_energy(*arrays)
        return alone, at_once or alone

    @compiled
    def run(params, y, x):
        without = None if name in NEED_THEIR_INPUT else all_of(params, y, None)
        return all_of(params, y, x), without

    return run


def left_out(name, y, x):
    """In place of no input: zeros, or the tokens as context."""
    return y if name == "causal_attention" else np.zeros_like(y if x is None else x)


@in_float64
@every_system
def test_batches_and_step_and_energy_are_each_alone(name):
    _, params, y, x = draw(name, 0, BATCH, "float64")
    given = left_out(name, y, x) if x is None else x
    with_input, without = batched(name)(params, y, given)
    alone, at_once = without if x is None else with_input
    chex.assert_trees_all_close(alone, at_once, rtol=1e-12, atol=1e-14)
    stepped, energies = alone
    assert energies.shape == BATCH
    for place in np.ndindex(BATCH):
        one = jax.tree.map(lambda leaf: leaf[place], (y, x))  # noqa: B023
        energy, _, step = slope_and_step(name, params, *one)
        assert_allclose(energies[place], energy, rtol=1e-10, atol=1e-10)
        assert_allclose(stepped[place], step, rtol=1e-10, atol=1e-10)


@nightly
@every_system
def test_known_values_step_as_traced_ones(name):
    descent, *arrays = draw(name, 0, (3,), "float32")
    known = jax.tree.map(jnp.asarray, arrays)
    step = descent.step
    both = compiled(lambda *traced: (step(*traced), step(*known)))(*arrays)
    chex.assert_trees_all_close(*both, rtol=1e-5, atol=1e-5)


@in_float64
@every_system
def test_an_input_left_out_is_zero_or_missed(name):
    descent, params, y, x = draw(name, 0, BATCH, "float64")
    if name in NEED_THEIR_INPUT:
        for function in (descent.energy, descent.step):
            with pytest.raises(ValueError, match=r"x must hold .*, got None"):
                jax.eval_shape(function, params, y, None)
        return
    with_input, without = batched(name)(params, y, left_out(name, y, x))
    chex.assert_trees_all_close(without, with_input, rtol=1e-12, atol=1e-12)


@functools.cache
def derivatives(name):
    """Energy and step without batch axes, and the gradients of the energy and of the
    step's product with a weight."""
    descent = many(name)[0]

    @compiled
    def run(weight, *point):
        values, pull = jax.vjp(functools.partial(both, descent), *point)
        return values, pull((1.0, weight))

    return run


def slope_and_step(name, params, y, x):
    (energy, step), slopes = derivatives(name)(np.zeros_like(y), params, y, x)
    return energy, slopes[1], step


@pytest.mark.usefixtures("x64", "unchecked")
@every_system
def test_derivatives_equal_finite_differences(name):
    """Derivatives in parameters, state and input along one direction. Further layers
    are in energies/test_every_system.py."""
    _, params, y, x = draw(name, 0, (), "float64")
    point = gaussian_like(params, scale=0.5), y, x
    direction = gaussian_like(point, seed=3)
    weight = gaussian(*y.shape, seed=4)

    def value(distance):
        there = moved(point, direction, distance)
        energy, step = derivatives(name)(weight, *there)[0]
        return energy + np.vdot(weight, step)

    slope = vdot(derivatives(name)(weight, *point)[1], direction)
    expected = directional_derivative(value, 0.0, 1.0, width=1e-5)
    assert_allclose(slope, expected, rtol=1e-6, atol=1e-7)


def minimiser(name, place):
    """A stationary point, by a quasi-Newton method that uses only the energy; among
    nonnegative tokens where the energy is infinite elsewhere."""
    _, params, y, x = draw(name, place, (), "float64")
    search = {"method": "BFGS", "options": {"gtol": 1e-10, "maxiter": 2000}}
    if name == "crate":
        precise = {"gtol": 1e-11, "ftol": 1e-16, "maxiter": 2000, "maxcor": 40}
        bounds = [(0.0, None)] * y.size
        search = {"method": "L-BFGS-B", "bounds": bounds, "options": precise}

    def objective(flat):
        energy, gradient, _ = slope_and_step(name, params, flat.reshape(y.shape), x)
        return float(energy), np.ravel(gradient)

    for _ in range(3):  # started again where round-off ended it early
        # whose tokens, seen after layer norm, may have grown without bound
        if name == "energy_transformer":
            y = seen(name, params, y)
        y = minimize(objective, np.ravel(y), jac=True, **search).x.reshape(y.shape)
    return params, y, x


def consensus(name, place):
    """A point stationary for both halves of a transformer: equal tokens at the
    minimum of the feed-forward half."""
    _, params, y, _ = draw(name, place, (), "float64")
    # its inverse below has a nonnegative image of ones
    params = params._replace(W_f=params.W_f @ params.W_f.T)
    anchor = np.ones(y.shape) @ (np.eye(y.shape[-1]) + params.W_f)
    return params, np.ones(y.shape), anchor


def anchored_consensus(name, place):
    """The same with anchors: the attention half's is the consensus, and the
    learnable row takes up the penalty too."""
    _, params, y, _ = draw(name, place, (), "float64")
    target = np.full((1, y.shape[-1]), 0.5)
    # phi' where phi belongs to tanh at step size 0.02
    pull = (np.arctanh(target) - target) / 0.02
    row = target + target @ (params.W_f + params.W_f.T) / 2 + pull
    return params._replace(row=row), np.full(y.shape, 0.5), np.full(y.shape, 0.5)


def sparse_consensus(name, place):
    """Equal codes that are the sparse ones of their signal: (x - H D) D^T = lambda
    sign(H), where D e_0 = 1."""
    _, params, y, x = draw(name, place, (), "float64")
    codes = np.tile(1.0 + np.abs(y[0]), (len(y), 1))
    D = np.concatenate([np.ones((len(params.D), 1)), params.D[:, 1:]], axis=1)
    # 0.1 is the sparsity
    return params._replace(D=D), codes, codes @ D + 0.1 * np.eye(x.shape[-1])[0]


# Where a stationary point comes from, if not from `minimiser`.
STATIONARY = {
    "transformer": consensus,
    "residual_transformer": anchored_consensus,
    "lista": sparse_consensus,
    "dust": sparse_consensus,
}


@in_float64
@every_system
def test_only_stationary_points_are_fixed_points(name):
    """Only the part that the energy sees is fixed: attention with a low-rank W_a
    continues to average the rest. An Energy Transformer sees tokens after layer norm. A
    bound that is met may have a slope outwards.
    """
    for place in range(2):
        params, y, x = STATIONARY.get(name, minimiser)(name, place)
        _, gradient, stepped = slope_and_step(name, params, y, x)
        outwards = (name == "crate") & (y == 0.0) & (gradient > 0.0)
        assert_allclose(np.where(outwards, 0.0, gradient), 0.0, atol=1e-7)
        assert_allclose(seen(name, params, stepped), seen(name, params, y), atol=1e-6)
    _, params, y, x = draw(name, 0, (), "float64")
    _, gradient, stepped = slope_and_step(name, params, y, x)
    assert np.max(np.abs(gradient)) > 1e-4
    assert np.max(np.abs(stepped - y)) > 1e-4


def seen(name, params, y):
    if name == "energy_transformer":
        centred = y - np.mean(y, axis=-1, keepdims=True)
        return centred / np.linalg.norm(centred, axis=-1, keepdims=True)
    W_a = getattr(params, "W_a", None)
    return y if W_a is None or W_a.shape[0] == W_a.shape[1] else y @ W_a


def with_absent_rows(name, y, x):
    """Five rows of which two are absent and hold NaN; y and x as they are for systems
    without tokens."""
    if uj.DESCENTS[name].event_ndim != 2:
        return y, x
    rows = x if name in OF_KEYS else y
    present = np.broadcast_to(np.arange(rows.shape[-2]) % 3 != 1, rows.shape[:-1])

    def blank(tokens):
        return None if tokens is None else np.where(present[..., None], tokens, np.nan)

    return y if name in OF_KEYS else blank(y), uj.Anchor(blank(x), present)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in {"attention", "fast_weights", "cross_attention"}
        else pytest.param(name, marks=nightly)
        for name in uj.DESCENTS
    ],
)
def test_wrapped_layers_are_certified_by_what_their_steps_do(name):
    """A step of the caller's, one that moves rows unlike each other, and a safeguarded
    one, with rows absent."""
    descent, params, y, x = draw(name, 1, (3,), "float32")
    y, x = with_absent_rows(name, y, x)
    factors = np.float32([0.9, 3.0, 1.1, 0.8, 2.0])
    factors = factors[: y.shape[1]].reshape(-1, *(1,) * (y.ndim - 2))
    layers = [
        descent._replace(step=lambda *arguments: descent.step(*arguments)),
        descent._replace(step=lambda params, y, x: y * jnp.asarray(factors, y.dtype)),
        uj.safeguarded(descent),
    ]

    @compiled
    def run(params, y, x):
        energies = [
            jnp.stack(
                [descent.energy(params, y, x) for y in (y, layer.step(params, y, x))]
            )
            for layer in layers
        ]
        certify = functools.partial(uj.certify, smoothness=1e-3, num_points=1)
        return energies, [certify(layer, params, y, x) for layer in layers]

    for number, (energies, certificate) in enumerate(
        zip(*run(params, y, x), strict=True)
    ):
        assert_allclose(certificate.energy, energies, rtol=1e-5, atol=1e-5)
        rose = energies[1] > energies[0] + 1e-4 * np.abs(energies[0])
        assert np.all(certificate.outcome[0][rose] == Outcome.ROSE)
        fell = energies[1] < energies[0] - 1e-4 * np.abs(energies[0])
        assert not np.any(certificate.outcome[0][fell] == Outcome.ROSE)
        assert not (number == 2 and rose.any())
        assert np.isfinite(certificate.slope).all()


@every_system
def test_a_replaced_function_leaves_no_field_of_the_old_one(name):
    descent = many(name)[0]
    moved = descent._replace(step=lambda params, y, x=None: y)
    assert moved.energy is descent.energy
    assert moved.smooth is descent.smooth
    assert moved[3:7] == (None, None, False, None)
    measured = descent._replace(energy=lambda params, y, x=None: jnp.zeros(()))
    assert measured.step is descent.step
    assert (moved.unchecked, measured.unchecked) == (None, None)
    assert (measured.step_and_energy, measured.smooth) == (None, None)
