"""Depth: one step repeated inside a scan; layers with noise on them and layers that
are lost, against loops."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import unroll_jax as uj
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.perturbations import layer_noise, lost_layer
from unroll_jax.unrolling import UNROLLED

DIM, TOKENS = 3, 4


def energy(params, y, x=None):
    return jnp.sum(((y if x is None else y - x) @ params["W"]) ** 2, axis=(-2, -1))


def step(params, y, x=None):
    return y - 0.1 * jnp.tanh(y if x is None else y - x) @ params["W"]


def step_and_energy(params, y, x=None):
    return step(params, y, x), energy(params, y, x)


LAYER = uj.Descent(lambda key: None, energy, step, step_and_energy)


def weights(num_layers=None):
    shape = (DIM, DIM) if num_layers is None else (num_layers, DIM, DIM)
    return {"W": jax_array(gaussian(*shape), np.float32)}


def tokens(*batch):
    y, x = np.random.default_rng(1).uniform(size=(2, *batch, TOKENS, DIM))
    return jax_array(y, np.float32), jax_array(x, np.float32)


def python_loop(params, y, x, *, num_layers, tied):
    energies = []
    for index in range(num_layers):
        own = params if tied else {"W": params["W"][index]}
        energies.append(energy(own, y, x))
        y = step(own, y, x)
    return y, jnp.stack([*energies, energy(own, y, x)])


@pytest.mark.parametrize(("tied", "batch"), [(True, (2, 3)), (False, ())])
def test_unroll_and_its_gradients_equal_those_of_a_python_loop(tied, batch):
    options = {"num_layers": 3, "tied": tied}

    def scanned(*given):
        last, trace = uj.unroll(LAYER, *given, **options)
        return last, trace.energy

    def slopes(run):
        def loss(*given):
            last, energies = run(*given)
            return jnp.sum(last**2) + jnp.sum(energies), (last, energies)

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)

    looped = functools.partial(python_loop, **options)
    both = compiled(lambda *given: (slopes(scanned)(*given), slopes(looped)(*given)))
    ours, theirs = both(weights(None if tied else 3), *tokens(*batch))
    assert ours[0][1][1].shape == (4, *batch)
    chex.assert_trees_all_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(ours[1], theirs[1], rtol=1e-4, atol=1e-5)


def test_a_step_alone_and_a_tree_of_states_will_do():
    def move(rate, state, x):
        return {
            "position": state["position"] + rate * state["speed"],
            "speed": state["speed"] - x,
        }

    start = {"position": np.zeros(2, np.float32), "speed": np.ones(2, np.float32)}
    options = {"num_layers": 2, "record": lambda rate, state, x: state["speed"]}
    last, trace = compiled(lambda y: uj.unroll(move, 0.5, y, 0.25, **options))(start)
    chex.assert_trees_all_close(
        last, {"position": np.full(2, 0.875), "speed": np.full(2, 0.5)}
    )
    assert_allclose(trace, [[1.0, 1.0], [0.75, 0.75], [0.5, 0.5]])


def test_layers_without_parameters_need_no_leading_axis():
    def last(y, tied):
        options = {"num_layers": 3, "tied": tied, "record": None}
        return uj.unroll(lambda p, y, x: 0.5 * y, None, y, **options)[0]

    both = compiled(lambda y: (last(y, True), last(y, False)))
    chex.assert_trees_all_equal(*both(tokens()[0]))


ROWS = np.random.default_rng(0).uniform(size=(3, 4)).astype(np.float32)


def affine(params, y, x):
    return params * y + x


@pytest.mark.parametrize("tied", [True, False])
def test_a_lost_layer_is_the_loop_without_it(tied):
    params = np.float32(0.5 if tied else [0.5, 2.0, -1.0])
    x = np.float32(0.1) * ROWS

    options = {"num_layers": 3, "tied": tied, "record": lambda p, y, x: y}
    run = compiled(
        lambda lost: uj.unroll(
            affine, params, ROWS, x, perturb=lost_layer(lost), **options
        )
    )
    for lost in (0, 1, 3):
        expected = [ROWS]
        for layer, scale in enumerate(np.broadcast_to(params, 3), 1):
            y = expected[-1]
            expected.append(y if layer == lost else scale * y + x)
        last, trace = run(lost)
        assert_allclose(trace, expected, rtol=1e-6)
        assert_allclose(last, expected[-1], rtol=1e-6)


def test_noise_reaches_the_next_layer_and_the_record():
    perturb = layer_noise(jax.random.key(3), 0.1)
    options = {"num_layers": 3, "record": lambda p, y, x: y, "perturb": perturb}

    @compiled
    def run(y):
        results = [
            uj.unroll(affine, 0.5, y, 0.0, remat=remat, **options)
            for remat in (False, True)
        ]
        seen = [y]
        for layer in range(1, 4):
            seen.append(perturb(jnp.int32(layer), seen[-1], 0.5 * seen[-1]))
        return results, seen

    results, seen = run(ROWS)
    for last, trace in results:
        assert_allclose(trace, seen, rtol=1e-5)
        assert_allclose(last, seen[-1], rtol=1e-5)


def test_noise_has_its_scale_and_differs_by_layer():
    """Noise of rows by their keys is in test_keys.py."""
    shapes = {"a": jnp.float32, "b": jnp.bfloat16}
    zeros = {name: np.zeros((100, 200), dtype) for name, dtype in shapes.items()}
    noise = layer_noise(jax.random.key(0), 2.0)
    draws = compiled(
        lambda zeros: [noise(jnp.int32(layer), None, zeros) for layer in (1, 2)]
    )(zeros)
    flat = np.float32([np.ravel(leaf) for leaf in jax.tree.leaves(draws)])
    assert_allclose(flat.mean(axis=1), 0.0, atol=0.06)
    assert_allclose(np.cov(flat), 4.0 * np.eye(4), atol=0.12)
    assert draws[0]["b"].dtype == jnp.bfloat16


def test_layers_are_written_out_up_to_a_depth():
    params, (y, _) = weights(), tokens()

    def loops(num_layers, **options):
        run = lambda y: uj.unroll(LAYER, params, y, num_layers=num_layers, **options)
        return "stablehlo.while" in jax.jit(run).lower(y).as_text()

    assert not loops(UNROLLED)
    assert loops(UNROLLED + 1)
    assert loops(3, remat=True)
