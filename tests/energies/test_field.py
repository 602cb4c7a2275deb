"""Published layers that are descents by construction or claim to be: CRATE, Energy
Transformer, Hyper-SET; safeguards. Their steps are compared with NumPy written from the
authors' public code (read, not copied: Ma-Lab-Berkeley/CRATE,
bhoov/energy-transformer-jax, huyunzhe/hyper-set), to 1e-8 in float64. CRATE's
model/crate.py adds attention at the scale head_dim^(-1/2) to the tokens and takes ISTA
steps of .1 at a sparsity of .1. The Energy Transformer's core.py takes twelve steps of
.1.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp, softmax

from tests.energies.comparing import Case, assert_equal
from tests.marks import in_float64
from tests.reference import compiled, gaussian, gaussian_like
from unroll_jax import (
    Anchor,
    Descent,
    certify,
    crate,
    energy_transformer,
    fast_weights,
    hopfield,
    hyper_set,
    safeguarded,
)

N, DIM = 6, 4


def crate_reference(
    params,
    y,
    *,
    form="published",
    sparsity=0.1,
    precision=0.5,
    step_size=None,
    compression=None,
):
    U = params.U
    heads = [y @ basis for basis in U]
    unit = 1.0 / (len(y) * precision**2)

    def rate(z):
        gram = np.eye(z.shape[1]) + z.shape[1] * unit * z.T @ z
        return 0.5 * np.linalg.slogdet(gram)[1]

    energy = sum(map(rate, heads)) - rate(y) + sparsity * np.sum(np.abs(y))
    if form == "proximal":

        def gradient(z):
            c = z.shape[1] * unit
            return c * z @ np.linalg.inv(np.eye(z.shape[1]) + c * z.T @ z)

        slope = sum(
            gradient(z) @ basis.T for z, basis in zip(heads, U, strict=True)
        ) - gradient(y)
        L = unit * (2 * sum(np.linalg.norm(basis.T @ basis) for basis in U) + 2 * DIM)
        length = (1.0 if step_size is None else step_size) / L
        return energy, np.maximum(y - length * (slope + sparsity), 0.0)
    attended = sum(
        softmax(z @ z.T / np.sqrt(2), -1) @ z @ basis.T
        for z, basis in zip(heads, U, strict=True)
    )
    half = (
        y + attended
        if compression is None
        else (1 - compression) * y + compression * attended
    )
    eta = step_size or 0.1
    D = params.D
    return energy, np.maximum(
        half + eta * (half @ D - half @ D.T @ D) - eta * sparsity, 0.0
    )


def energy_transformer_reference(params, y, *, guaranteed, step_size=0.1, epsilon=1e-5):
    normed = (y - y.mean(-1, keepdims=True)) / np.sqrt(
        y.var(-1, keepdims=True) + epsilon
    )
    g = params.scale * normed + params.shift
    beta = 1 / np.sqrt(3)
    energy = 0.0
    slope = np.zeros_like(g)
    for W_Q, W_K in zip(params.W_Q, params.W_K, strict=True):
        q = g @ W_Q.T
        k = g @ W_K.T
        # queries by keys
        scores = np.where(np.eye(N, dtype=bool), -np.inf, beta * q @ k.T)
        shares = softmax(scores, -1)
        energy -= np.sum(logsumexp(scores, -1)) / beta
        slope -= shares @ k @ W_Q + shares.T @ q @ W_K
    hidden = np.maximum(g @ params.memories.T, 0.0)
    slope -= hidden @ params.memories
    return energy - 0.5 * np.sum(hidden**2), y - step_size * slope


def hyper_set_reference(params, y, *, form="published", step_size=0.1, epsilon=1e-6):
    def normed(z):
        return z / np.sqrt(np.mean(z**2, -1, keepdims=True) + epsilon)

    def pulled_back(z, gradient):
        size = np.sqrt(np.mean(z**2, -1, keepdims=True) + epsilon)
        return gradient / size - z * np.mean(z * gradient, -1, keepdims=True) / size**3

    D = params.D
    energy = 0.0
    half = y.copy()
    slope = np.zeros_like(y)
    for W in params.W:
        z = normed(y @ W.T)
        scores = z @ z.T / np.sqrt(3)
        energy += np.sqrt(3) * np.sum(logsumexp(scores, -1))
        moved = (softmax(scores, -1) + softmax(scores, -2)) @ z
        half -= step_size * moved @ W
        slope += pulled_back(y @ W.T, moved) @ W
    aligned = np.maximum(normed(y @ D.T), 0.0)
    energy -= 0.5 * np.sum(aligned**2)
    if form == "gradient":
        return energy, y - step_size * (slope - pulled_back(y @ D.T, aligned) @ D)
    return energy, half + step_size * np.maximum(normed(half @ D.T), 0.0) @ D


# The layer, its equations and options.
REFERENCES = {
    "crate": (
        functools.partial(crate, num_heads=2, head_dim=2),
        crate_reference,
        [
            {},
            {"compression": 0.3, "step_size": 0.2, "sparsity": 0.05},
            {"form": "proximal", "precision": 0.7, "step_size": 0.5},
        ],
    ),
    "energy_transformer": (
        functools.partial(energy_transformer, num_heads=2, head_dim=3, num_memories=5),
        energy_transformer_reference,
        [
            {"guaranteed": False},
            {"guaranteed": False, "step_size": 0.5, "epsilon": 0.1},
        ],
    ),
    "hyper_set": (
        functools.partial(hyper_set, num_heads=2, head_dim=3, width=5),
        hyper_set_reference,
        [{"step_size": 0.3}, {"form": "gradient", "epsilon": 0.1}],
    ),
}


@in_float64
@pytest.mark.parametrize("name", REFERENCES)
def test_energy_and_step_equal_the_public_code_in_numpy(name):
    make, reference, table = REFERENCES[name]
    cases = {}
    y = gaussian(N, DIM)
    y = np.abs(y) if name == "crate" else y
    for options in table:
        layer = make(DIM, **options)
        shapes = jax.eval_shape(layer.init, jax.random.key(0))
        params = gaussian_like(shapes, scale=0.5, seed=1)
        cases[str(options)] = Case(
            layer, params, y, None, *reference(params, y, **options)
        )
    assert_equal(cases, rtol=1e-8, atol=1e-10)


def rises(layers, init, y):
    @compiled
    def energies(seed, y):
        params = init(jax.random.key(seed))
        steps = [layer.step(params, y) for layer in layers]
        return layers[0].energy(params, jnp.stack([y, *steps]))

    before, *after = energies(0, y)
    return np.array(after) > before + 1e-5 * (1.0 + np.abs(before))


def test_only_the_fixed_step_of_an_energy_transformer_rises():
    """Keys and queries five times their initial size: training makes such."""
    made = [
        energy_transformer(
            2, step_size=a, guaranteed=g, num_heads=1, head_dim=2, num_memories=2
        )
        for g in (False, True)
        for a in (0.1, 1.0, 10.0)
    ]

    def trained(key):
        params = made[0].init(key)
        return params._replace(W_Q=5.0 * params.W_Q, W_K=5.0 * params.W_K)

    y = gaussian(500, 2, 2, seed=1).astype("float32")
    risen = rises(made, trained, y)
    assert np.all(np.mean(risen[:3], axis=1) > 0.1)
    assert not np.any(risen[3:])


@in_float64
def test_the_published_hyper_set_step_points_uphill():
    layer = hyper_set(3, num_heads=1, head_dim=2, width=4)

    def slope(key):
        key_init, key_y = jax.random.split(key)
        params = layer.init(key_init)
        y = jax.random.normal(key_y, (3, 3))
        gradient = jax.grad(layer.energy, 1)(params, y)
        return jnp.vdot(gradient, layer.step(params, y) - y)

    @compiled
    def drawn(seed):
        key = jax.random.key(seed, impl="rbg")
        return jax.lax.map(slope, jax.random.split(key, 1000))

    slopes = drawn(0)
    assert 0.1 < np.mean(slopes > 0.0) < 0.5  # 19%: at these no step size helps


def test_crate_compresses_as_printed_and_expands_as_coded():
    """Only the attention half, on the rates of subspaces with an orthonormal basis:
    no ISTA, no sparsity."""
    rng = np.random.default_rng(1)
    y = np.abs(rng.normal(size=(500, 8, 16))).astype("float32")
    basis = (
        np.linalg.qr(rng.normal(size=(16, 16)).astype("float32"))[0]
        .reshape(16, 4, 4)
        .transpose(1, 0, 2)
    )

    def rates(z):
        heads = np.einsum("bnd,hdp->bhnp", z, basis)
        gram = np.eye(4) + 4 / (8 * 0.5**2) * np.einsum("bhnp,bhnq->bhpq", heads, heads)
        return 0.5 * np.sum(np.linalg.slogdet(gram)[1], axis=-1)

    heads = np.einsum("bnd,hdp->bhnp", y, basis)
    shares = softmax(np.einsum("bhip,bhjp->bhij", heads, heads) / 2.0, axis=-1)
    attended = np.einsum("bhij,bhjp,hdp->bid", shares, heads, basis)
    for share in (0.1, 0.5):
        assert np.all(rates(y + share * (attended - y)) < rates(y))
    assert np.all(rates(y + attended) > rates(y))
    # The whole published layer, at its own initialisation, on its own objective.
    published, compressed = (
        crate(16, num_heads=4, head_dim=4, compression=share) for share in (None, 0.3)
    )
    risen = rises([published, compressed], published.init, y)
    assert np.mean(risen[1]) < np.mean(risen[0]) == 1.0


def wild(scale):
    """Gradient steps on |y|^2 / 2 that are ``scale`` times too long."""
    return Descent(
        lambda key: None,
        lambda p, y, x: 0.5 * jnp.sum(y**2, (-2, -1)),
        lambda p, y, x: -scale * y,
    )


def test_a_safeguarded_step_is_halved_until_it_falls():
    y = np.float32([1.0, -2.0, 3.0])[:, None, None]

    @compiled
    def step(scale, y):
        return safeguarded(wild(scale), halvings=4).step(None, y, None)

    for scale, length in ((0.5, 1.0), (1.5, 0.5), (6.0, 0.25), (1e6, 0.0)):
        assert_allclose(step(scale, y), (1.0 - length * (scale + 1.0)) * y, rtol=1e-6)
    layer = wild(0.5)._replace(smooth=lambda params, y, x: 0.0 * y)
    assert safeguarded(layer).smooth is layer.smooth


def test_a_safeguarded_step_stays_where_it_is_nan_or_absent():
    """An absent token at infinity stays under a shortened step, too."""

    @compiled
    def step(bad, y):
        broken = wild(0.5)._replace(
            step=lambda params, y, x: jnp.where(y > 0.0, bad, 0.5 * y)
        )
        return safeguarded(broken).step(None, y, None)

    for bad in (np.nan, np.inf):
        assert_array_equal(
            step(bad, np.float32([[[1.0]], [[-1.0]]])), [[[1.0]], [[-0.5]]]
        )
    far = Descent(
        init=lambda key: None,
        energy=lambda params, y, x: jnp.sum(jnp.where(x, 0.5 * y**2, 0.0)),
        step=lambda params, y, x: jnp.where(x, -2.5 * y, y),
    )
    y = np.float32([1.0, np.inf, -np.inf])
    there = np.array([True, False, False])
    stepped = compiled(safeguarded(far).step)(None, y, there)
    assert_array_equal(stepped, [-0.75, np.inf, -np.inf])


def test_proximal_steps_of_crate_lower_large_codes_in_float32():
    """Next to determinants of the tokens' Gram matrix in float64. Of many equal tokens,
    elimination in that matrix met a pivot of 0 in 3% of the cases."""
    layer = crate(DIM, num_heads=2, head_dim=2, form="proximal")
    params = compiled(layer.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    collinear = rng.uniform(0.5, 1.0, (N, 1)) * rng.uniform(0.5, 1.0, DIM)
    of_one_entry = np.eye(1, DIM).repeat(N, 0)
    ordinary = rng.uniform(size=(N, DIM))
    kinds = np.stack([collinear, np.ones((N, DIM)), of_one_entry, ordinary])
    sizes = np.array([1.0, 1e2, 1e3, 1e4, 1e5])[:, None, None, None]
    rows = rng.uniform(0.01, 2.0, size=(500, 1, DIM))

    @compiled
    def run(params, y):
        return layer.energy(params, y), layer.energy(params, layer.step(params, y))

    y = np.float32(sizes * kinds)
    before, after = run(params, y)
    assert np.all(after < before), after - before
    wide = params._replace(U=np.asarray(params.U, float))
    for place in np.ndindex(before.shape):
        expected, _ = crate_reference(wide, y[place].astype(float), form="proximal")
        assert_allclose(before[place], expected, rtol=2e-6, err_msg=str(place))
    before, after = run(params, np.float32(1e4 * rows * np.ones((1, 20, 1))))
    assert np.all(after < before)


def test_a_safeguarded_layer_keeps_the_energies_of_any_anchor():
    """Pairs and keys are absent where the state has other rows, or as many."""
    rng = np.random.default_rng(0)
    present = np.array([False, True, True, False, True])
    cases = [
        (hopfield(3), rng.normal(size=(5, 3)), rng.normal(size=(5, 3))),
        (fast_weights(4, 3), rng.normal(size=(3, 4)), rng.normal(size=(5, 7))),
        (fast_weights(4, 5), rng.normal(size=(5, 4)), rng.normal(size=(5, 9))),
    ]

    def of(layer, y, rows):
        wrapped = safeguarded(layer)
        params = layer.init(jax.random.key(0))
        anchor = Anchor(rows, present)
        stepped = wrapped.step(params, y, anchor)
        energies = [layer.energy(params, z, anchor) for z in (y, stepped)]
        return energies, certify(wrapped, params, y, anchor, num_points=1).energy

    layers, *arrays = zip(*cases, strict=True)
    run = compiled(lambda *arrays: list(map(of, layers, *arrays)))
    for energies, certified in run(*jax.tree.map(np.float32, arrays)):
        assert_allclose(certified, energies, rtol=1e-6)
