"""Sparse coding of tokens (LISTA) and of sequences (DUST)."""

import chex
import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams, attention
from unroll_jax.energies.dust import DustParams, ListaParams, cosine_dictionary, dust, lista

N, DIM, ATOMS, RANK = 5, 3, 6, 4
DRAWS = 10_000


def compiled(factory, *args, **options):
    """The factory's layer, compiled: quicker here than one operation at a time."""
    layer = factory(*args, **options)
    return layer._replace(energy=jax.jit(layer.energy), step=jax.jit(layer.step))


def soft(y, threshold):
    return np.sign(y) * np.maximum(np.abs(y) - threshold, 0.0)


def coding_energy(H, D, x, sparsity):
    """|x - H D|^2 / 2 + lambda |H|_1, token by token."""
    return sum(0.5 * np.sum((e - h @ D) ** 2) + sparsity * np.sum(np.abs(h)) for h, e in zip(H, x, strict=True))


def coding_step(H, D, x, sparsity, c=None):
    c = np.linalg.norm(D, 2) ** 2 if c is None else c
    return np.array([soft(h + D @ (e - h @ D) / c, sparsity / c) for h, e in zip(H, x, strict=True)])


def mixing_step(H, V, form, *, damping=1.0, graph=None):
    if form != "plain":
        return reference.pair_step(H, form=form, W_a=V.T, step_size=damping, graph=graph)
    weights = np.exp(H @ V.T @ V @ H.T)
    return (1.0 - damping) * H + damping * weights / weights.sum(axis=1, keepdims=True) @ H


def draw(seed, count=()):
    """Codes, dictionary, V and signal."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(*count, *shape)) for shape in ((N, ATOMS), (ATOMS, DIM), (RANK, ATOMS), (N, DIM)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("curvature", [None, 7.0])
@pytest.mark.parametrize("sparsity", [0.0, 0.3])
def test_lista_equals_the_reference(sparsity, curvature):
    H, D, _, x = draw(0)
    layer = compiled(lista, DIM, ATOMS, sparsity=sparsity, curvature=curvature)
    args = ListaParams(jnp.asarray(D)), jnp.asarray(H), jnp.asarray(x)
    np.testing.assert_allclose(layer.energy(*args), coding_energy(H, D, x, sparsity), rtol=1e-12)
    np.testing.assert_allclose(layer.step(*args), coding_step(H, D, x, sparsity, curvature), rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("damping", [1.0, 0.4])
@pytest.mark.parametrize("form", ["softmax", "jacobi", "plain"])
def test_dust_equals_the_reference(form, damping):
    H, D, V, x = draw(1)
    graph = None if form == "plain" else reference.random_graph(np.random.default_rng(2), N, 0.7)
    layer = compiled(
        dust, DIM, ATOMS, rank=RANK, form=form, sparsity=0.2, attention_step_size=damping, mask=graph, curvature=9.0
    )
    args = DustParams(jnp.asarray(D), jnp.asarray(V)), jnp.asarray(H), jnp.asarray(x)
    energy = reference.pair_energy(H, W_a=V.T, graph=graph) + coding_energy(H, D, x, 0.2)
    np.testing.assert_allclose(layer.energy(*args), energy, rtol=1e-12)
    mixed = mixing_step(H, V, form, damping=damping, graph=graph)
    np.testing.assert_allclose(layer.step(*args), coding_step(mixed, D, x, 0.2, 9.0), rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["softmax", "plain"])
def test_gradients_equal_finite_differences_of_the_reference(form):
    # A draw with no entry within 0.05 of the threshold, where the step has a kink.
    point, weight = draw(16), np.random.default_rng(4).normal(size=(N, ATOMS))
    layer = dust(DIM, ATOMS, rank=RANK, form=form, sparsity=0.05)

    def on_arrays(function):
        return lambda H, D, V, x: function(DustParams(D, V), H, x)

    arrays = tuple(map(jnp.asarray, point))
    of_energy = jax.jit(jax.grad(on_arrays(layer.energy), range(4)))(*arrays)
    of_step = jax.jit(jax.grad(on_arrays(lambda *a: jnp.sum(weight * layer.step(*a))), range(4)))(*arrays)

    def energy(H, D, V, x):
        return reference.pair_energy(H, W_a=V.T) + coding_energy(H, D, x, 0.05)

    def step(H, D, V, x):
        return np.sum(weight * coding_step(mixing_step(H, V, form), D, x, 0.05))

    for function, gradients in ((energy, of_energy), (step, of_step)):
        for place, gradient in enumerate(gradients):
            direction = np.random.default_rng(5).normal(size=gradient.shape)

            def along(value, function=function, place=place):
                return function(*point[:place], value, *point[place + 1 :])

            expected = reference.directional_derivative(along, point[place], direction, width=1e-4)
            np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("share", [0.5, 1.0, 3.0])
def test_no_lista_step_raises_its_energy_and_it_falls_as_much_as_proven(share, dtype):
    """For curvatures down to half of |D|_2^2; scales over six orders of magnitude."""
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(6)
        H, D, _, x = (10.0 ** rng.uniform(-3, 3, size=(2000, 1, 1)) * a for a in draw(7, (2000,)))
        D /= np.linalg.norm(D, 2, axis=(1, 2))[:, None, None]
        layer = lista(DIM, ATOMS, sparsity=0.1, curvature=share)

        @jax.jit
        @jax.vmap
        def fall(H, D, x):
            params, size = ListaParams(D), jnp.sum(H**2) + jnp.sum(x**2) + 0.1 * jnp.sum(jnp.abs(H))
            stepped = layer.step(params, H, x)
            proven = (share - 0.5) * jnp.sum((stepped - H) ** 2)
            return layer.energy(params, H, x) - layer.energy(params, stepped, x), proven, size

        fell, proven, size = fall(*(jnp.asarray(a, dtype) for a in (H, D, x)))
        assert jnp.all(fell >= proven - 60.0 * jnp.finfo(dtype).eps * (1.0 + size))
        assert jnp.mean(fell > 0.0) > 0.9


@pytest.mark.usefixtures("x64")
def test_curvature_one_is_too_little_for_an_overcomplete_dictionary():
    """|D|_2^2 of four times as many unit atoms as dimensions is about 4, and half of that more than 1."""
    D, rng = cosine_dictionary(64, 16), np.random.default_rng(8)
    assert np.linalg.norm(D, 2) ** 2 > 3.0
    params = ListaParams(jnp.asarray(D))
    x, energies = jnp.asarray(rng.normal(size=(N, 16))), {}
    for curvature in (None, 1.0):
        layer = compiled(lista, 16, 64, curvature=curvature)
        H, energies[curvature] = jnp.zeros((N, 64)), []
        for _ in range(10):
            energies[curvature].append(layer.energy(params, H, x))
            H = layer.step(params, H, x)
    assert np.all(np.diff(energies[None]) < 0.0)
    assert energies[1.0][-1] > 10.0 * energies[1.0][0]


@pytest.mark.usefixtures("x64")
def test_lista_with_one_dictionary_converges_to_the_sparse_code():
    _, D, _, x = draw(9)
    layer, params = lista(DIM, ATOMS, sparsity=0.3), ListaParams(jnp.asarray(D))
    H = jax.jit(lambda H: jax.lax.fori_loop(0, 3000, lambda _, H: layer.step(params, H, jnp.asarray(x)), H))(
        jnp.zeros((N, ATOMS))
    )
    variable = cvxpy.Variable((N, ATOMS))
    objective = 0.5 * cvxpy.sum_squares(x - variable @ D) + 0.3 * cvxpy.sum(cvxpy.abs(variable))
    least = cvxpy.Problem(cvxpy.Minimize(objective)).solve(solver=cvxpy.CLARABEL)
    np.testing.assert_allclose(layer.energy(params, H, jnp.asarray(x)), least, rtol=1e-7)
    assert 0 < jnp.sum(H == 0.0) < H.size  # sparse, and not all of it


def random_layers(form, share, spread):
    """DRAWS random layers of one curvature, with what the docstring's condition says of each and what E did."""
    H, D, V, x = draw(10, (DRAWS,))
    rng = np.random.default_rng(11)
    H = 3.0 * rng.normal(size=(DRAWS, 1, ATOMS)) + spread * H
    D, V = (a / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None] for a in (D, V))
    V, x = V * 10.0 ** rng.uniform(-2, 0, size=(DRAWS, 1, 1)), x * 10.0 ** rng.uniform(0, 2, size=(DRAWS, 1, 1))
    smoothness = 1.0 + N * np.linalg.norm(V, 2, axis=(1, 2)).max() ** 2
    curvature = share * smoothness
    layer = dust(DIM, ATOMS, rank=RANK, form=form, sparsity=0.05, curvature=curvature)
    coding = lista(DIM, ATOMS, sparsity=0.05, curvature=curvature)
    pair = attention(form=form, dim=ATOMS, rank=RANK)

    @jax.jit
    @jax.vmap
    def example(H, D, V, x):
        params, W_a = DustParams(D, V), AttentionParams(V.T)
        mixed, stepped = pair.step(W_a, H), layer.step(params, H, x)
        left = jax.grad(pair.energy, 1)(W_a, H) / curvature + (mixed - H) @ (jnp.eye(ATOMS) - D @ D.T / curvature)
        room = (1.0 - 0.5 * smoothness / curvature) * jnp.linalg.norm(stepped - H)
        halves = (
            pair.energy(W_a, H) - pair.energy(W_a, mixed),
            (coding.energy(ListaParams(D), mixed, x) - coding.energy(ListaParams(D), stepped, x)),
        )
        return layer.energy(params, H, x), layer.energy(params, stepped, x), room - jnp.linalg.norm(left), halves

    return example(*map(jnp.asarray, (H, D, V, x)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("spread", [1e-2, 1.0])
@pytest.mark.parametrize("share", [0.8, 2.0])
@pytest.mark.parametrize("form", ["softmax", "jacobi"])
def test_under_the_stated_condition_no_step_raises_the_whole_energy(form, share, spread):
    before, after, slack, halves = random_layers(form, share, spread)
    assert jnp.sum(slack >= 0.0) > DRAWS // 50  # the condition is not empty
    assert jnp.all(jnp.where(slack >= 0.0, after <= before + 1e-12 * (1.0 + jnp.abs(before)), True))
    for fell in halves:  # each half lowers its part, condition or not
        assert jnp.all(fell >= -1e-11)


@pytest.mark.usefixtures("x64")
def test_where_the_condition_is_broken_the_whole_energy_does_rise():
    before, after, slack, _ = random_layers("softmax", 20.0, 1.0)
    rose = after > before + 1e-3 * (1.0 + jnp.abs(before))
    assert jnp.sum(rose & (slack < 0.0)) > DRAWS // 100


@pytest.mark.usefixtures("x64")
def test_the_published_softmax_raises_the_pair_energy_where_the_exact_one_lowers_it():
    """Codes near zero, and a long one that without beta draws those on its side away from the rest."""
    H = np.array([[4.489], [-0.478], [0.389], [0.178]])
    rises = {
        form: reference.pair_energy(mixing_step(H, np.eye(1), form)) - reference.pair_energy(H)
        for form in ("plain", "softmax", "jacobi")
    }
    assert rises["plain"] > 1.0
    assert rises["softmax"] < 0.0
    assert rises["jacobi"] < 0.0


@pytest.mark.usefixtures("x64")
def test_the_published_softmax_is_the_exact_one_among_codes_of_one_length():
    H, D, V, x = draw(12)
    H = H / np.linalg.norm(H @ V.T, axis=1, keepdims=True)
    args = DustParams(jnp.asarray(D), jnp.asarray(V)), jnp.asarray(H), jnp.asarray(x)
    found, exact = (compiled(dust, DIM, ATOMS, rank=RANK, form=form).step(*args) for form in ("plain", "softmax"))
    chex.assert_trees_all_close(found, exact, rtol=1e-12)


@pytest.mark.parametrize(("atoms", "dim"), [(4, 4), (9, 4), (10, 4), (3, 9), (5, 5), (12, 5), (3, 7), (1, 1), (3, 1)])
def test_the_dictionary_has_unit_cosines_from_low_to_high_frequency(atoms, dim):
    D = cosine_dictionary(atoms, dim)
    assert D.shape == (atoms, dim)
    np.testing.assert_allclose(np.linalg.norm(D, axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(D[0], 1.0 / np.sqrt(dim), rtol=1e-12)
    if atoms <= dim:
        np.testing.assert_allclose(D @ D.T, np.eye(atoms), atol=1e-12)
    if int(np.sqrt(dim)) ** 2 != dim:
        wave = np.cos(np.pi * np.arange(atoms)[:, None] * (2 * np.arange(dim) + 1) / (2 * max(atoms, dim)))
        np.testing.assert_allclose(D, wave / np.linalg.norm(wave, axis=1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("form", ["softmax", "plain"])
def test_absent_tokens_neither_count_nor_move(getkey, form):
    layer = compiled(dust, DIM, ATOMS, form=form)
    H = jax.random.normal(getkey(), (2, N, ATOMS)).at[:, 3:].set(jnp.nan)
    x = jax.random.normal(getkey(), (2, N, DIM)).at[:, 3:].set(jnp.inf)
    params, padded = layer.init(getkey()), Anchor(x, jnp.broadcast_to(jnp.arange(N) < 3, (2, N)))
    stepped = layer.step(params, H, padded)
    chex.assert_trees_all_close(stepped[:, :3], layer.step(params, H[:, :3], x[:, :3]), rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(layer.energy(params, H, padded), layer.energy(params, H[:, :3], x[:, :3]), rtol=1e-5)
    assert jnp.all(jnp.isnan(stepped[:, 3:]))


@pytest.mark.parametrize("form", ["softmax", "plain"])
def test_bfloat16_codes_keep_their_dtype_and_energies_are_float32(getkey, form):
    layer, H = compiled(dust, DIM, ATOMS, form=form), jax.random.normal(getkey(), (N, ATOMS), jnp.bfloat16)
    params, x = layer.init(getkey()), jax.random.normal(getkey(), (N, DIM), jnp.bfloat16)
    wide = layer.step(params, H.astype(jnp.float32), x.astype(jnp.float32))
    chex.assert_trees_all_close(layer.step(params, H, x).astype(jnp.float32), wide, atol=0.03)
    assert (layer.step(params, H, x).dtype, layer.energy(params, H, x).dtype) == (jnp.bfloat16, jnp.float32)


BAD_OPTIONS = [
    (lista, {"dim": 0}, "dim must be at least 1, got 0"),
    (lista, {"sparsity": -0.1}, "sparsity must be finite and at least 0, got -0.1"),
    (lista, {"curvature": 0.0}, "curvature must be positive and finite, got 0.0"),
    (dust, {"sparsity": float("inf")}, "sparsity must be finite and at least 0, got inf"),
    (dust, {"form": "gauss"}, "form must be one of .*'plain'.*, got 'gauss'"),
    (dust, {"form": "plain", "mask": np.eye(N, dtype=bool)}, "mask must be None for form='plain'"),
    (dust, {"rank": 7}, "rank must be between 1 and dim=6, got 7"),
    (dust, {"attention_step_size": 1.5}, r"step_size must be in \(0, 1\], got 1.5"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("factory", "options", "message"), BAD_OPTIONS, ids=[row[2] for row in BAD_OPTIONS])
def test_a_bad_option_is_named(factory, options, message):
    with pytest.raises(ValueError, match=message):
        factory(**{"dim": DIM, "num_atoms": ATOMS, **options})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("factory", [lista, dust])
def test_a_bad_input_is_named(factory, getkey):
    layer, H, x = factory(DIM, ATOMS), jnp.ones((N, ATOMS)), jnp.ones((N, DIM))
    params = layer.init(getkey())
    for function in (layer.energy, layer.step):
        with pytest.raises(ValueError, match=r"width dim=6, got shape \(5, 3\)"):
            function(params, x, x)
        with pytest.raises(ValueError, match="x must hold the signal, got None"):
            function(params, H, None)
        with pytest.raises(ValueError, match=r"x must hold the signal of shape \(5, 3\).*got shape \(5, 6\)"):
            function(params, H, H)
        with pytest.raises(ValueError, match=r"x must be finite, but x\[1, 2\] is not"):
            function(params, H, x.at[1, 2].set(jnp.nan))
