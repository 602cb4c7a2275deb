"""Attention and its pairwise energies."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.energies import AttentionParams

NO_WEIGHT = AttentionParams(None)
CAUCHY = uj.Rho(value=lambda z: z / (1.0 + z))  # slope by autodiff, no logarithm given
GRAPHS = {
    "complete": None,
    "empty": np.zeros((6, 6), bool),
    "star": np.array([[(u == 0) != (v == 0) for v in range(6)] for u in range(6)]),
    "two components": np.kron(np.eye(2, dtype=bool), np.ones((3, 3), bool)),
    "isolated token": np.pad(np.ones((5, 5), bool), (0, 1)),
    "random": reference.random_graph(np.random.default_rng(7), 6),
}


def tokens(seed, shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def attention(**options):
    """The factory's layer, compiled: quicker here than one operation at a time."""
    layer = uj.attention(**options)
    return layer._replace(energy=jax.jit(layer.energy), step=jax.jit(layer.step))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("graph", GRAPHS, ids=str)
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
@pytest.mark.parametrize("rho", list(uj.RHOS))
def test_energy_and_step_equal_the_reference(rho, form, graph):
    y, x, W_a = tokens(0, (6, 3)), tokens(1, (6, 3)), tokens(2, (3, 2))
    mask = GRAPHS[graph]
    for ridge, step_size, anchor, weight in itertools.product((0.0, 0.7), (1.0, 0.3), (None, x), (None, W_a)):
        dim, rank = (None, None) if weight is None else weight.shape
        layer = uj.attention(rho=rho, form=form, ridge=ridge, step_size=step_size, mask=mask, dim=dim, rank=rank)
        params = AttentionParams(None if weight is None else jnp.asarray(weight))
        args = (params, jnp.asarray(y), None if anchor is None else jnp.asarray(anchor))
        system = {"rho": rho, "graph": mask, "ridge": ridge, "anchor": anchor, "W_a": weight}
        np.testing.assert_allclose(layer.energy(*args), reference.pair_energy(y, **system), rtol=1e-12, atol=1e-12)
        expected = reference.pair_step(y, form=form, step_size=step_size, **system)
        np.testing.assert_allclose(layer.step(*args), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rho", list(uj.RHOS))
def test_gradients_equal_finite_differences_of_the_reference(rho):
    y, x, W_a, mask = tokens(0, (6, 3)), tokens(1, (6, 3)), tokens(2, (3, 2)), GRAPHS["random"]
    layer = uj.attention(rho=rho, ridge=0.7, mask=mask, dim=3, rank=2)
    differentiate = jax.jit(jax.grad(layer.energy, (0, 1, 2)))
    gradients = differentiate(AttentionParams(jnp.asarray(W_a)), jnp.asarray(y), jnp.asarray(x))
    system = {"rho": rho, "graph": mask, "ridge": 0.7}
    functions = (
        (W_a, gradients[0].W_a, lambda W_a: reference.pair_energy(y, anchor=x, W_a=W_a, **system)),
        (y, gradients[1], lambda y: reference.pair_energy(y, anchor=x, W_a=W_a, **system)),
        (x, gradients[2], lambda x: reference.pair_energy(y, anchor=x, W_a=W_a, **system)),
    )
    for point, gradient, function in functions:
        direction = tokens(3, point.shape)
        expected = reference.directional_derivative(function, point, direction)
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
@pytest.mark.parametrize("rho", list(uj.RHOS))
def test_gradients_of_the_step_equal_finite_differences_of_the_reference(rho, form):
    y, x, W_a, mask = tokens(0, (6, 3)), tokens(1, (6, 3)), tokens(2, (3, 2)), GRAPHS["random"]
    layer, weight = uj.attention(rho=rho, form=form, ridge=0.7, mask=mask, dim=3, rank=2), tokens(4, (6, 3))
    gradients = jax.jit(jax.grad(lambda *args: jnp.sum(weight * layer.step(*args)), (0, 1, 2)))(
        AttentionParams(jnp.asarray(W_a)), jnp.asarray(y), jnp.asarray(x)
    )

    def step(y, x, W_a):
        return np.sum(weight * reference.pair_step(y, rho=rho, form=form, graph=mask, ridge=0.7, anchor=x, W_a=W_a))

    functions = (
        (W_a, gradients[0].W_a, lambda W_a: step(y, x, W_a)),
        (y, gradients[1], lambda y: step(y, x, W_a)),
        (x, gradients[2], lambda x: step(y, x, W_a)),
    )
    for point, gradient, function in functions:
        direction = tokens(3, point.shape)
        expected = reference.directional_derivative(function, point, direction)
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8)


@pytest.mark.parametrize("rank", [None, 3])
def test_the_softmax_form_is_softmax_attention(getkey, rank):
    layer = attention(form="softmax", dim=4 if rank else None, rank=rank)
    params, y = layer.init(getkey()), 2.0 * jax.random.normal(getkey(), (3, 5, 4))
    z = y if rank is None else y @ params.W_a
    logits = z @ z.mT - 0.5 * jnp.sum(z**2, axis=-1)[..., None, :]
    chex.assert_trees_all_close(layer.step(params, y), jax.nn.softmax(logits, axis=-1) @ y, rtol=1e-5, atol=1e-6)
    for example, weights in zip(y, layer.step(params, y), strict=True):
        expected = reference.softmax_attention(np.float64(example), None if rank is None else np.float64(params.W_a))
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_the_undamped_step_minimises_the_majoriser_of_each_token_alone(getkey):
    """One token free, the others held: the exact minimiser when rho is linear."""
    linear = uj.Rho(value=lambda z: z, slope=jnp.ones_like)
    y = jax.random.normal(getkey(), (5, 3))
    stepped = attention(rho=linear, ridge=0.5).step(NO_WEIGHT, y)
    others = jnp.sum(y, axis=0) - y
    chex.assert_trees_all_close(stepped, others / (4 + 0.5), rtol=1e-6, atol=1e-6)


def test_a_token_without_neighbours_stays_where_it_is(getkey):
    y = jax.random.normal(getkey(), (6, 3))
    for form in ("jacobi", "softmax"):
        stepped = attention(form=form, mask=GRAPHS["isolated token"]).step(NO_WEIGHT, y)
        chex.assert_trees_all_equal(stepped[5], y[5])
        assert jnp.all(jnp.any(stepped[:5] != y[:5], axis=-1))
        chex.assert_trees_all_equal(attention(form=form).step(NO_WEIGHT, y[:1]), y[:1])


def test_components_of_the_graph_do_not_feel_each_other(getkey):
    y = jax.random.normal(getkey(), (6, 3))
    layer, half = attention(mask=GRAPHS["two components"]), attention()
    apart = jnp.concatenate([half.step(NO_WEIGHT, y[:3]), half.step(NO_WEIGHT, y[3:])])
    chex.assert_trees_all_close(layer.step(NO_WEIGHT, y), apart, rtol=1e-5, atol=1e-6)
    total = half.energy(NO_WEIGHT, y[:3]) + half.energy(NO_WEIGHT, y[3:])
    chex.assert_trees_all_close(layer.energy(NO_WEIGHT, y), total, rtol=1e-5)


def test_the_diagonal_of_the_mask_does_not_count(getkey):
    y, mask = jax.random.normal(getkey(), (6, 3)), GRAPHS["random"]
    without, within = (attention(mask=m) for m in (mask, mask | np.eye(6, dtype=bool)))
    chex.assert_trees_all_equal(without.step(NO_WEIGHT, y), within.step(NO_WEIGHT, y))
    chex.assert_trees_all_equal(without.energy(NO_WEIGHT, y), within.energy(NO_WEIGHT, y))


@pytest.mark.parametrize("form", ["jacobi", "softmax"])
@pytest.mark.parametrize("distance", [7.0, 8.2, 20.0, 1e3, 1e8])
def test_tokens_far_apart_keep_step_and_gradients_finite(form, distance):
    """exp(-distance^2 / 2) underflows here; the nearest neighbour still has all the weight."""
    y = distance * jnp.array([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]])
    layer = attention(form=form)
    stepped = layer.step(NO_WEIGHT, y)
    nearest = y if form == "softmax" else y[jnp.array([1, 0, 1])]
    chex.assert_trees_all_close(stepped, nearest, rtol=1e-6)
    chex.assert_tree_all_finite(jax.jit(jax.jacobian(layer.step, 1))(NO_WEIGHT, y))
    chex.assert_tree_all_finite(jax.jit(jax.grad(layer.energy, 1))(NO_WEIGHT, y))


@pytest.mark.usefixtures("x64")
def test_derivatives_at_coincident_tokens_are_those_of_the_formula():
    """At y_u = y_v the Hessian of rho(|y_u - y_v|^2 / 2) is rho'(0) times the graph's Laplacian."""
    y = jnp.full((3, 1), 1.3)
    layer = attention()
    hessian = jax.jit(jax.hessian(lambda y: layer.energy(NO_WEIGHT, y)))(y)[:, 0, :, 0]
    np.testing.assert_allclose(hessian, 3.0 * np.eye(3) - np.ones((3, 3)), atol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.grad(layer.energy, 1))(NO_WEIGHT, y), 0.0, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_a_rho_of_infinite_slope_at_zero_is_refused_for_equal_tokens_have_it_as_weight():
    for rho in (jnp.sqrt, uj.Rho(value=jnp.sqrt)):
        with pytest.raises(ValueError, match=r"rho 'sqrt' must have a finite slope at z=0, .* use sqrt\(z \+ eps\)"):
            attention(rho=rho)
    layer, y = attention(rho=lambda z: jnp.sqrt(z + 1e-6)), jnp.array([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
    chex.assert_tree_all_finite(jax.jit(layer.step)(NO_WEIGHT, y))
    chex.assert_tree_all_finite(jax.jit(jax.jacobian(layer.step, 1))(NO_WEIGHT, y))
    assert layer.energy(NO_WEIGHT, layer.step(NO_WEIGHT, y)) < layer.energy(NO_WEIGHT, y)


def test_a_large_common_offset_costs_no_digits(getkey):
    """float32 at offset 4096: distances come from centred tokens, whose offset is exact in binary here."""
    y = jnp.round(jax.random.normal(getkey(), (5, 3)) * 64) / 64
    layer = attention()
    chex.assert_trees_all_close(layer.energy(NO_WEIGHT, y + 4096.0), layer.energy(NO_WEIGHT, y), rtol=1e-3)


def test_a_nan_token_is_not_hidden_where_it_cannot_be_refused(getkey):
    """Traced values are not known when they are checked."""
    y = jax.random.normal(getkey(), (4, 2)).at[1, 0].set(jnp.nan)
    for rho in (*uj.RHOS, CAUCHY):
        layer = attention(rho=rho)
        assert jnp.isnan(layer.energy(NO_WEIGHT, y))
        assert jnp.all(jnp.any(jnp.isnan(layer.step(NO_WEIGHT, y)), axis=-1))


@pytest.mark.parametrize("form", ["jacobi", "softmax"])
def test_bfloat16_tokens_are_computed_in_float32(getkey, form):
    layer = attention(form=form, ridge=0.5, dim=4, rank=2)
    params, y, x = layer.init(getkey()), *(jax.random.normal(getkey(), (2, 5, 4), jnp.bfloat16) for _ in range(2))
    wide = layer.step(params, y.astype(jnp.float32), x.astype(jnp.float32))
    chex.assert_trees_all_equal(layer.step(params, y, x), wide.astype(jnp.bfloat16))
    energy = layer.energy(params, y, x)
    assert energy.dtype == jnp.float32
    chex.assert_trees_all_close(energy, layer.energy(params, *(a.astype(jnp.float32) for a in (y, x))), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (6, 3), (2, 6, 3), (2, 1, 3)])
def test_the_anchor_broadcasts(getkey, shape):
    y, x = jax.random.normal(getkey(), (2, 6, 3)), jax.random.normal(getkey(), shape)
    layer, full = attention(ridge=0.5), jnp.broadcast_to(x, y.shape)
    chex.assert_trees_all_close(layer.step(NO_WEIGHT, y, x), layer.step(NO_WEIGHT, y, full), rtol=1e-6)
    chex.assert_trees_all_close(layer.energy(NO_WEIGHT, y, x), layer.energy(NO_WEIGHT, y, full), rtol=1e-6)


def test_init_draws_the_weight_of_the_stated_shape(getkey):
    assert uj.attention().init(getkey()).W_a is None
    assert uj.attention(dim=5).init(getkey()).W_a.shape == (5, 5)
    assert uj.attention(dim=5, rank=2).init(getkey()).W_a.shape == (5, 2)


BAD_OPTIONS = [
    ({"form": "gauss"}, ValueError, "form must be one of .*'gauss'"),
    ({"rho": "gauss"}, ValueError, "rho must be one of .*, a Rho or a function, got 'gauss'"),
    ({"ridge": -1.0}, ValueError, "ridge .* got -1.0"),
    ({"ridge": float("inf")}, ValueError, "ridge .* got inf"),
    ({"ridge": float("nan")}, ValueError, "ridge .* got nan"),
    ({"step_size": 0.0}, ValueError, r"step_size must be in \(0, 1\], got 0.0"),
    ({"step_size": 1.5}, ValueError, r"step_size must be in \(0, 1\], got 1.5"),
    ({"dim": 0}, ValueError, "dim must be at least 1, got 0"),
    ({"rank": 2}, ValueError, "rank .* got 2; pass dim"),
    ({"dim": 3, "rank": 4}, ValueError, "rank must be between 1 and dim=3, got 4"),
    ({"dim": 3, "rank": 0}, ValueError, "rank must be between 1 and dim=3, got 0"),
    ({"mask": np.ones((3, 3))}, ValueError, "mask must be a boolean .* got float64"),
    ({"mask": np.ones((3, 2), bool)}, ValueError, r"mask must be .* shape \(3, 2\)"),
    ({"mask": np.triu(np.ones((3, 3), bool))}, ValueError, r"mask must be symmetric .* mask\[0, 1\]"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS, ids=[str(row[2]) for row in BAD_OPTIONS])
def test_a_bad_option_is_named(options, error, message):
    with pytest.raises(error, match=message):
        uj.attention(**options)


BAD_INPUTS = [
    (jnp.ones((6, 3), int), None, TypeError, "y must have a floating dtype, got int"),
    (jnp.ones((6, 3)), jnp.ones((6, 3), int), TypeError, "x must have a floating dtype, got int"),
    (jnp.ones(3), None, ValueError, r"y must be .* got shape \(3,\)"),
    (jnp.ones((6, 4)), None, ValueError, r"width dim=3, got shape \(6, 4\)"),
    (jnp.ones((6, 3)), jnp.ones((5, 3)), ValueError, r"x must broadcast to y's shape \(6, 3\), got shape \(5, 3\)"),
    (jnp.ones((6, 3)), jnp.ones((2, 6, 3)), ValueError, r"x must broadcast to y's shape \(6, 3\), got shape \(2"),
    (jnp.ones((5, 3)), None, ValueError, r"mask is \(6, 6\), but y has n=5 tokens"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("y", "x", "error", "message"), BAD_INPUTS, ids=[row[3] for row in BAD_INPUTS])
def test_a_bad_input_is_named(getkey, y, x, error, message):
    layer = uj.attention(ridge=1.0, dim=3, mask=GRAPHS["star"])
    params = layer.init(getkey())
    for function in (layer.energy, layer.step, jax.jit(layer.step)):
        with pytest.raises(error, match=message):
            function(params, y, x)
