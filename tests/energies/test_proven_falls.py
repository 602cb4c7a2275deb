"""Energies fall by at least their proven bound, c |y' - y|^2, for any weights and
scales."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.energies.dust_reference import ATOMS, DIM, N
from tests.marks import in_float64
from tests.reference import compiled
from tests.test_conformance import energies_and_roundoff
from unroll_jax.energies import hopfield, layer_norm, lista, opteq, opteq_conv

DRAWS = 500
CODER = functools.partial(lista, DIM, ATOMS, sparsity=0.1)


def of_length(a):
    """A gradient step of length a on an energy of curvature 1 at most: a (1 - a / 2)
    |grad E|^2."""
    return (1.0 - a / 2.0) / a


# The layer, c, and the shapes of state and input, if it has one, of one example.
TOKENS = (N, DIM), (N, DIM)
LAYERS = {
    **{
        f"hopfield, b = {b}": (
            hopfield(DIM, num_patterns=7, inverse_temperature=b),
            0.5,
            *TOKENS,
        )
        for b in (1e-3, 1e3)
    },
    "hopfield, damped": (
        hopfield(DIM, num_patterns=7, step_size=0.3),
        of_length(0.3),
        *TOKENS,
    ),
    # With |D|_2 = 1. Half of that curvature is the least that a step may have.
    **{
        f"lista, c = {c}": (CODER(curvature=c), c - 0.5, (N, ATOMS), (N, DIM))
        for c in (0.5, 3.0)
    },
    "layer_norm, small radius": (layer_norm(DIM, radius=0.1), 0.5, (N, DIM), None),
    "layer_norm, damped": (
        layer_norm(DIM, epsilon=10.0, step_size=0.2),
        of_length(0.2),
        (N, DIM),
        None,
    ),
    "opteq, skip": (
        opteq(4, 6, 3, activation="tanh", skip=0.4),
        of_length(0.4),
        (4,),
        (3,),
    ),
    "opteq_conv": (opteq_conv(2, 3, 1, skip=0.4), of_length(0.4), (4, 3, 2), (4, 3, 1)),
}


def drawn(name):
    layer, _, *shapes = LAYERS[name]
    rng = np.random.default_rng(6)
    wanted = jax.eval_shape(layer.init, jax.random.key(0))

    def leaf(shape):
        return 10.0 ** rng.uniform(-3.0, 3.0, (DRAWS, *(1,) * len(shape))) * rng.normal(
            size=(DRAWS, *shape)
        )

    params = jax.tree.map(lambda like: leaf(like.shape), wanted)
    if name.startswith("lista"):
        params = params._replace(
            D=params.D / np.linalg.norm(params.D, 2, axis=(1, 2))[:, None, None]
        )
    return params, *(None if shape is None else leaf(shape) for shape in shapes)


def cancelled(params, y, x):
    """Squares that cancel in an energy, but for round-off: of patterns and tokens,
    and of hidden units."""
    if hasattr(params, "S"):
        return jnp.sum(params.S**2) + jnp.sum(y**2) + jnp.sum(x**2)
    if not hasattr(params, "W") or params.W.ndim > 2:
        return 0.0
    return jnp.sum((y @ params.W.T + x @ params.U.T + params.b) ** 2)


@in_float64
def test_a_step_lowers_its_energy_as_proven():
    def measure(name, params, y, x):
        layer, constant, event, _ = LAYERS[name]
        stepped = layer.step(params, y, x)
        energies, tolerance = energies_and_roundoff(
            layer.energy, params, y, stepped, x, len(event)
        )
        tolerance += (
            40.0
            * jnp.finfo(float).eps
            * sum(cancelled(params, state, x) for state in (y, stepped))
        )
        return energies, constant * jnp.sum((stepped - y) ** 2), tolerance

    @compiled
    def measured(draws):
        return {
            name: jax.vmap(functools.partial(measure, name))(*draw)
            for name, draw in draws.items()
        }

    results = measured({name: drawn(name) for name in LAYERS})
    for name, (energies, proven, tolerance) in results.items():
        fell = energies[:, 0] - energies[:, 1]
        assert np.all(np.isfinite(proven)), name
        assert np.all(fell >= proven * (1.0 - 1e-5) - tolerance), name
        # the rest moves by less than round-off
        assert np.mean(fell > 0.0) > 0.6, name
