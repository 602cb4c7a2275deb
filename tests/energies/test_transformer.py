"""The whole transformer layer, and the layer of the unrolled transformer."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.energies import TransformerParams, UnrolledLayerParams, attention, unrolled_layer
from unroll_jax.energies.pairwise import AttentionParams

N, DIM = 5, 3
DRAWS = 4000


def draw(seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    y, x, W_a, W_f = (
        rng.uniform(size=(N, DIM)),
        rng.normal(size=(N, DIM)),
        rng.normal(size=(DIM, 2)),
        rng.normal(size=(3, 3)),
    )
    return y, x, W_a, W_f


def as_arrays(y, x, W_a, W_f):
    return TransformerParams(jnp.asarray(W_a), jnp.asarray(W_f)), jnp.asarray(y), jnp.asarray(x)


def reference_step(y, x, W_a, W_f, *, form, step_size, rho="softmax", graph=None, damping=1.0):
    mixed = reference.pair_step(y, rho=rho, form=form, W_a=W_a, graph=graph, step_size=damping)
    relu = lambda u, step_size: np.maximum(u, 0.0)  # noqa: E731
    return reference.feedforward_step(mixed, W_f, x, step_size=step_size, prox=relu)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
@pytest.mark.parametrize("rho", list(uj.RHOS))
def test_energy_and_step_equal_the_reference(rho, form):
    graph = reference.random_graph(np.random.default_rng(3), N, 0.7)
    layer = uj.transformer(DIM, rank=2, rho=rho, form=form, step_size=0.3, attention_step_size=0.6, mask=graph)
    y, x, W_a, W_f = draw(0)
    params, *arrays = as_arrays(y, x, W_a, W_f)
    energy = reference.pair_energy(y, rho=rho, graph=graph, W_a=W_a) + reference.feedforward_energy(y, W_f, x)
    np.testing.assert_allclose(layer.energy(params, *arrays), energy, rtol=1e-12)
    expected = reference_step(y, x, W_a, W_f, form=form, step_size=0.3, rho=rho, graph=graph, damping=0.6)
    np.testing.assert_allclose(layer.step(params, *arrays), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_the_default_layer_is_equation_20():
    """prox_phi([softmax_beta(Y W_a W_a^T Y^T) Y] W_f^s + a B), the Y that the paper's print drops included."""
    y, x, W_a, W_f = draw(1)
    params, *arrays = as_arrays(y, x, W_a, W_f)
    mixing = 0.5 * np.eye(DIM) - 0.5 * (W_f + W_f.T) / 2
    expected = np.maximum(reference.softmax_attention(y, W_a) @ mixing + 0.5 * x, 0.0)
    np.testing.assert_allclose(uj.transformer(DIM, rank=2).step(params, *arrays), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_gradients_equal_finite_differences_of_the_reference():
    y, x, W_a, W_f = draw(2)
    weight = np.random.default_rng(4).normal(size=(N, DIM))
    layer = uj.transformer(DIM, rank=2)
    of_energy = jax.jit(jax.grad(layer.energy, (0, 1, 2)))(*as_arrays(y, x, W_a, W_f))
    of_step = jax.jit(jax.grad(lambda *a: jnp.sum(weight * layer.step(*a)), (0, 1, 2)))(*as_arrays(y, x, W_a, W_f))

    def energy(y, x, W_a, W_f):
        return reference.pair_energy(y, W_a=W_a) + reference.feedforward_energy(y, W_f, x)

    def step(y, x, W_a, W_f):
        return np.sum(weight * reference_step(y, x, W_a, W_f, form="softmax", step_size=0.5))

    point = [y, x, W_a, W_f]
    for function, gradients in ((energy, of_energy), (step, of_step)):
        for place, gradient in enumerate((gradients[1], gradients[2], gradients[0].W_a, gradients[0].W_f)):
            direction = np.random.default_rng(5).normal(size=gradient.shape)

            def along(value, function=function, place=place):
                return function(*point[:place], value, *point[place + 1 :])

            expected = reference.directional_derivative(along, point[place], direction, width=1e-4)
            np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8)


def random_layers(form, spread, step_share):
    """DRAWS random weights, tokens and anchors with the share of 1/L that the step takes, and what became of them.

    Returns energies before and after, whether the docstring's condition held, and the margin by which it did.
    """
    rng = np.random.default_rng(6)
    W_a = rng.normal(size=(DRAWS, DIM, DIM)) * 10.0 ** rng.uniform(-2, 0.3, size=(DRAWS, 1, 1))
    W_f = rng.normal(size=(DRAWS, DIM, DIM)) * 10.0 ** rng.uniform(-1, 0.5, size=(DRAWS, 1, 1))
    # Spectra come from NumPy: two batched decompositions in one compiled program can wait for each other for ever on
    # two cores, each holding a thread of the pool that the other needs (seen with jaxlib 0.10.2).
    largest = np.maximum(np.linalg.eigvalsh((W_f + W_f.mT) / 2)[:, -1], 0.0)
    step_sizes = step_share / (N * np.linalg.norm(W_a, 2, axis=(1, 2)) ** 2 + largest + 1.0)
    consensus = np.abs(rng.normal(size=(DRAWS, 1, DIM))) * 3.0
    y = jnp.asarray(np.maximum(consensus + spread * rng.normal(size=(DRAWS, N, DIM)), 0.0))
    x = jnp.asarray(rng.normal(size=(DRAWS, N, DIM)))
    pair = attention(form=form, dim=DIM)

    def example(W_a, W_f, y, x, step_size):
        symmetric = (W_f + W_f.T) / 2
        params = TransformerParams(W_a, W_f)
        mixed = pair.step(AttentionParams(W_a), y)
        mixing = (1.0 - step_size) * jnp.eye(DIM) - step_size * symmetric
        stepped = jax.nn.relu(mixed @ mixing + step_size * x)
        energy = uj.transformer(DIM, form=form).energy
        error = jnp.linalg.norm(step_size * jax.grad(pair.energy, 1)(AttentionParams(W_a), y) + (mixed - y) @ mixing)
        slack = 0.5 * jnp.linalg.norm(stepped - y) - error
        return energy(params, y, x), energy(params, stepped, x), slack, jnp.linalg.norm(stepped - y)

    return jax.jit(jax.vmap(example))(*map(jnp.asarray, (W_a, W_f, y, x, step_sizes)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["jacobi", "softmax"])
@pytest.mark.parametrize("spread", [1e-3, 0.1, 1.0])
def test_under_the_stated_condition_no_step_raises_the_whole_energy(form, spread):
    before, after, slack, _ = random_layers(form, spread, step_share=1.0)
    held = slack >= 0.0
    assert jnp.sum(held) > DRAWS // 20  # the condition is not empty
    assert jnp.all(jnp.where(held, after <= before + 1e-12 * (1.0 + jnp.abs(before)), True))


@pytest.mark.usefixtures("x64")
def test_where_the_condition_is_broken_the_whole_energy_does_rise():
    """A full attention step against a short feed-forward one: what the first costs the second cannot win back."""
    before, after, slack, moved = random_layers("softmax", 1.0, step_share=0.05)
    broken = slack < -0.1 * moved
    rose = broken & (after > before + 1e-3 * (1.0 + jnp.abs(before)))
    assert jnp.sum(rose) > DRAWS // 100


@pytest.mark.usefixtures("x64")
def test_the_condition_is_the_library_layers_own():
    """`random_layers` rebuilds the step to vary its size by example; here it is the library's, at one size."""
    y, x, W_a, W_f = draw(7)
    params, *arrays = as_arrays(y, x, W_a, W_f)
    mixed = attention(form="softmax", dim=DIM, rank=2).step(AttentionParams(params.W_a), arrays[0])
    mixing = 0.8 * jnp.eye(DIM) - 0.2 * (params.W_f + params.W_f.T) / 2
    expected = jax.nn.relu(mixed @ mixing + 0.2 * arrays[1])
    np.testing.assert_allclose(uj.transformer(DIM, rank=2, step_size=0.2).step(params, *arrays), expected, rtol=1e-12)


def test_bfloat16_tokens_keep_their_dtype_and_energies_are_float32(getkey):
    layer, y = uj.transformer(DIM), jax.random.uniform(getkey(), (2, N, DIM), jnp.bfloat16)
    params = layer.init(getkey())
    assert layer.step(params, y).dtype == jnp.bfloat16
    assert layer.energy(params, y).dtype == jnp.float32
    wide = layer.step(params, y.astype(jnp.float32))
    chex.assert_trees_all_close(layer.step(params, y).astype(jnp.float32), wide, atol=0.02)


def test_the_energy_is_infinite_outside_the_domain_of_phi(getkey):
    layer, y = uj.transformer(DIM), jax.random.uniform(getkey(), (N, DIM))
    params = layer.init(getkey())
    assert jnp.isinf(layer.energy(params, y.at[0, 0].set(-1e-3)))
    assert jnp.isfinite(layer.energy(params, layer.step(params, y - 1.0)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_the_unrolled_layer_equals_the_reference(batch):
    rng = np.random.default_rng(8)
    y, V, W, U = (
        rng.normal(size=(*batch, N, DIM)),
        rng.normal(size=(2, DIM)),
        rng.normal(size=(3, 3)),
        rng.normal(size=(3, 3)),
    )
    found = unrolled_layer(UnrolledLayerParams(*map(jnp.asarray, (V, W, U))), jnp.asarray(y))
    flat = [reference.unrolled_layer(example, V, W, U) for example in y.reshape(-1, N, DIM)]
    np.testing.assert_allclose(found, np.reshape(flat, y.shape), rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_gradients_of_the_unrolled_layer_equal_finite_differences_of_the_reference():
    rng = np.random.default_rng(9)
    point = [rng.uniform(size=(N, DIM)), rng.normal(size=(2, DIM)), *rng.uniform(size=(2, DIM, DIM))]
    weight = rng.normal(size=(N, DIM))
    y, V, W, U = map(jnp.asarray, point)
    gradients = jax.grad(lambda y, p: jnp.sum(weight * unrolled_layer(p, y)), (0, 1))(y, UnrolledLayerParams(V, W, U))
    for place, gradient in enumerate((gradients[0], *gradients[1])):
        direction = rng.normal(size=gradient.shape)

        def along(value, place=place):
            return np.sum(weight * reference.unrolled_layer(*point[:place], value, *point[place + 1 :]))

        expected = reference.directional_derivative(along, point[place], direction)
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8)


@pytest.mark.usefixtures("unchecked")
def test_the_unrolled_layer_refuses_what_does_not_fit():
    params = UnrolledLayerParams(jnp.ones((2, 3)), jnp.ones((3, 3)), jnp.ones((3, 3)))
    with pytest.raises(ValueError, match=r"width dim=3, got shape \(5, 4\)"):
        unrolled_layer(params, jnp.ones((5, 4)))
    with pytest.raises(TypeError, match="y must have a floating dtype, got uint8"):
        unrolled_layer(params, jnp.ones((5, 3), jnp.uint8))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"rank": 4}, "rank must be between 1 and dim=3, got 4"),
        ({"rho": "gauss"}, "rho must be one of .* got 'gauss'"),
        ({"phi": "gelu"}, "phi must be one of .* got 'gelu'"),
        ({"form": "gauss"}, "form must be one of .* got 'gauss'"),
        ({"step_size": -1.0}, "step_size must be positive and finite, got -1.0"),
        ({"attention_step_size": 2.0}, r"attention_step_size must be in \(0, 1\], got 2.0"),
        ({"mask": np.triu(np.ones((3, 3), bool))}, "mask must be symmetric"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        uj.transformer(**{"dim": 3, **options})
