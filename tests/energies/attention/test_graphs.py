"""Graphs given by what they look like: the same numbers as a dense mask, without its n x n."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests import reference
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams, band
from unroll_jax.energies.attention.graphs import complete

NO_WEIGHT = AttentionParams(None)
N, DIM = 12, 3
PLACES = np.arange(N)
APART = np.abs(np.subtract.outer(PLACES, PLACES))

# What the factories make, and the mask that says the same.
GRAPHS = {
    "band": (band(2), APART <= 2),
    "band wider than the sequence": (band(40), APART <= 40),
}


def draw(*batch):
    rng = np.random.default_rng(0)
    y, x = rng.normal(size=(2, *batch, N, DIM))
    return y, Anchor(x, rng.random((*batch, N)) < 0.8)


def everything(layer, y, x):
    """Energy alone, step and energy together, and the gradient of all of it."""
    weight = np.cos(np.arange(y.size)).reshape(y.shape)

    def total(y):
        alone, (stepped, energy) = layer.energy(NO_WEIGHT, y, x), layer.step_and_energy(NO_WEIGHT, y, x)
        return jnp.sum(weight * stepped) + jnp.sum(alone) + 2.0 * jnp.sum(energy), (alone, stepped, energy)

    return jax.grad(total, has_aux=True)(y)


CHOICES = (("softmax", "softmax"), ("log", "jacobi"))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_gives_what_its_mask_gives(name):
    """Padded, in batches; and in blocks where it is made of blocks."""
    graph, mask = GRAPHS[name]

    @jax.jit
    def all_of(y, x):
        def one(choice, **options):
            rho, form = choice
            return everything(uj.attention(rho=rho, form=form, ridge=0.3, **options), y, x)

        results = {choice: {"mask": one(choice, mask=mask), "graph": one(choice, mask=graph)} for choice in CHOICES}
        if name == "band":
            results[CHOICES[-1]]["blocks"] = one(CHOICES[-1], mask=graph, block=5)
        return results

    for choice, results in all_of(*draw(2)).items():
        expected = results.pop("mask")
        for what, other in results.items():
            message = f"{choice}, {what}"
            chex.assert_trees_all_close(other, expected, rtol=1e-10, atol=1e-12, custom_message=message)


@pytest.mark.usefixtures("x64")
def test_a_graph_gives_what_the_equations_give():
    graph, mask = GRAPHS["band"]
    y, x = draw(1, 2)
    layers = [uj.attention(rho=rho, form=form, ridge=0.3, mask=graph) for rho, form in CHOICES]
    apply = jax.jit(lambda *args: [(layer.energy(NO_WEIGHT, *args), layer.step(NO_WEIGHT, *args)) for layer in layers])
    for (rho, form), (energy, stepped) in zip(CHOICES, apply(y, x.value), strict=True):
        for place in np.ndindex(1, 2):
            system = {"rho": rho, "graph": mask, "ridge": 0.3, "anchor": x.value[place]}
            np.testing.assert_allclose(energy[place], reference.pair_energy(y[place], **system), rtol=1e-12)
            expected = reference.pair_step(y[place], form=form, **system)
            np.testing.assert_allclose(stepped[place], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_memory_is_that_of_the_pairs():
    """Sixteen times the tokens take about sixteen times the memory, with the gradients; squares would take 256."""
    sizes, memory = (512, 8192), []
    for n in sizes:
        layer = uj.attention(form="softmax", mask=band(8))

        def loss(y, layer=layer):
            stepped, energy = layer.step_and_energy(NO_WEIGHT, y, None)
            return jnp.sum(stepped**2) + energy

        program = jax.jit(jax.grad(loss)).lower(jax.ShapeDtypeStruct((n, DIM), jnp.float32)).compile()
        memory.append(program.memory_analysis().temp_size_in_bytes)
    assert memory[1] < 24 * memory[0]
    assert memory[1] < 4 * sizes[1] ** 2 / 5


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_steps_on_sparse_graphs_lower_the_energy():
    layer = uj.attention(mask=band(8))
    y = np.logspace(-2, 2, 10)[:, None, None] * np.random.default_rng(0).normal(size=(10, 256, DIM))
    _, trace = jax.jit(lambda y: uj.unroll(layer, NO_WEIGHT, y, num_layers=5))(y)
    energy = np.asarray(trace.energy)
    assert np.all(np.diff(energy, axis=0) <= 1e-11 * (1.0 + np.abs(energy[:-1])))
    assert np.all(energy[-1, 2:6] < energy[0, 2:6])


def test_every_pair_of_a_layout_is_met_once():
    """Whatever n and block: every token in one row, and each of its neighbours once among the columns."""
    everyone = [jnp.asarray(numbers) for numbers in np.indices((70, 70))]
    kinds = [(graph, np.asarray(graph.adjacent(*everyone))) for graph in (band(3), band(1), complete())]
    for (graph, adjacent), n, block in itertools.product(kinds, (1, 2, 5, 11, 70), (1, 4, 200)):
        layout = graph.layout(n, block)
        rows = layout.rows.ravel()
        np.testing.assert_array_equal(rows[:n], np.arange(n))
        assert np.all(rows[n:] >= n)
        met = np.zeros((n, n), int)
        columns = np.broadcast_to(np.arange(n), (len(layout.rows), n)) if layout.columns is None else layout.columns
        for row, column in zip(layout.rows, columns, strict=True):
            u, v = (part[(part >= 0) & (part < n)] for part in (row, column))
            met[np.ix_(u, v)] += np.ones((len(u), len(v)), int)  # numbers that recur would count once only
            assert len(np.unique(v)) == len(v)
        assert np.all(met[adjacent[:n, :n] & ~np.eye(n, dtype=bool)] == 1), (graph.name, n, block)


@pytest.mark.parametrize("mask", [None, band(2)], ids=["complete", "band"])
def test_a_batch_may_be_empty(mask):
    layer, y = uj.attention(form="softmax", mask=mask), np.zeros((0, N, DIM), np.float32)
    energy, stepped = jax.jit(lambda y: (layer.energy(NO_WEIGHT, y), layer.step(NO_WEIGHT, y)))(y)
    assert energy.shape == (0,)
    assert stepped.shape == y.shape
