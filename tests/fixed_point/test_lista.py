"""A converged result is a fixed point or has the least energy: no solver drifts in
the null space of a map."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.marks import in_float64, nightly, types_unchecked
from tests.reference import compiled
from unroll_jax.energies import ListaParams
from unroll_jax.fixed_point import SOLVERS

pytestmark = types_unchecked
TOL = 1e-5
SPARSITY = 0.13


def norms(z):
    return np.linalg.norm(np.reshape(z, (len(z), -1)), axis=1)


def judge_of(step, energy, start):
    """A float64 test of examples: at a fixed point, relative to the end of 20,000
    plain steps, or as low in energy."""

    def moves(pair):
        count, before, after = pair
        round_off = 4.0 * jnp.finfo(after.dtype).eps * jnp.max(jnp.abs(after))
        return (count < 20_000) & ~jnp.all(jnp.abs(after - before) <= round_off)

    follow = lambda pair: (pair[0] + 1, pair[2], step(pair[2]))
    find = lambda z: jax.lax.while_loop(moves, follow, (0, z + jnp.inf, z))[2]
    evaluate = compiled(lambda z: (step(z), energy(z)))
    limit = compiled(find)(start)
    size = norms(limit)
    _, lowest = evaluate(limit)

    def is_right(z):
        moved, here = evaluate(z)
        near = norms(moved - z) <= 10.0 * TOL * (1.0 + size)
        return near | (here - lowest <= 1e-2 * np.maximum(1.0, np.abs(lowest)))

    return is_right


def dictionaries(count, dim, atoms, seed=0):
    """Random ones, overcomplete: the map is nonexpansive and has a null space."""
    draw = np.random.default_rng(seed)
    D = draw.normal(size=(count, atoms, dim))
    return D / np.linalg.norm(D, axis=-1, keepdims=True), draw.normal(
        size=(count, 1, dim)
    )


@functools.cache
def lista_problem(count, dim, atoms):
    layer = uj.lista(dim, atoms, sparsity=SPARSITY)
    D, x = dictionaries(count, dim, atoms)
    step, energy = (
        jax.vmap(lambda D, z, x, f=function: f(ListaParams(D), z, x))
        for function in (layer.step, layer.energy)
    )
    is_right = judge_of(
        lambda z: step(D, z, x), lambda z: energy(D, z, x), np.zeros((count, 1, atoms))
    )
    return layer, D, x, is_right


def count_codes(sizes, dtype, find):
    """Codes that converge, and those that do wrongly, by ``find``: as `equilibrium`."""
    layer, D, x, is_right = lista_problem(*sizes)

    def solve(D, x):
        return find(layer, ListaParams(D), jnp.zeros((1, sizes[2]), dtype), x)

    z, info = compiled(jax.vmap(solve))(D.astype(dtype), x.astype(dtype))
    converged = np.ravel(info.converged)
    return converged.sum(), np.sum(converged & ~np.ravel(is_right(z.astype(float))))


OTHERS = [name for name in SOLVERS if name not in ("anderson", "accelerated_gradient")]
# Problems, a solver, a dtype, steps, and how many codes are to converge.
CODES = [((300, 5, 9), None, dtype, 200, 100) for dtype in ("float32", "float64")]
LONG = [((300, 5, 9), None, dtype, 2000, 240) for dtype in ("float32", "float64")]
LONG += [
    ((126, 2, 4), solver, "float32", steps, 0)
    for solver in OTHERS
    for steps in (2000, 200)
]


@in_float64
@pytest.mark.parametrize(
    "case",
    CODES + [pytest.param(case, marks=nightly) for case in LONG],
    ids=str,
)
def test_no_wrong_code_of_an_overcomplete_dictionary_converges(case):
    sizes, solver, dtype, steps, least = case
    options = {"solver": solver, "max_steps": steps, "on_failure": "accept"}
    find = functools.partial(uj.equilibrium, **options)
    converged, wrong = count_codes(sizes, dtype, find)
    assert wrong == 0
    assert converged >= least


@nightly
@in_float64
@pytest.mark.parametrize("name", uj.DESCENTS)
def test_no_system_is_called_converged_where_it_is_wrong(name):
    descent, *given = uj.DESCENTS[name].example(jax.random.key(0), (4,))
    cast = lambda tree, dtype: jax.tree.map(lambda leaf: np.asarray(leaf, dtype), tree)
    params, y, x = cast((descent.init(jax.random.key(1)), *given), np.float64)
    is_right = judge_of(
        lambda z: descent.step(params, z, x), lambda z: descent.energy(params, z, x), y
    )
    for dtype, steps in ((np.float32, 2000), (np.float32, 200), (np.float64, 200)):
        options = {"max_steps": steps, "on_failure": "accept", "tol": TOL}
        solve = compiled(functools.partial(uj.equilibrium, descent, **options))
        z, info = solve(*cast((params, y, x), dtype))
        wrong = np.ravel(info.converged) & ~is_right(z.astype(float))
        assert not np.any(wrong), (dtype, steps, info)
