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
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(z)]
    return np.sqrt(
        sum(np.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in leaves)
    )


def judge_of(step, energy, start):
    """A float64 test of examples: at a fixed point, relative to the end of 20,000
    plain steps, or as low in energy."""

    def moves(pair):
        count, before, after = pair
        round_off = 4.0 * jnp.finfo(after.dtype).eps * jnp.max(jnp.abs(after))
        return (count < 20_000) & ~jnp.all(jnp.abs(after - before) <= round_off)

    follow = lambda pair: (pair[0] + 1, pair[2], step(pair[2]))
    limit = compiled(
        lambda z: jax.lax.while_loop(moves, follow, (0, z + jnp.inf, z))[2]
    )(start)

    @compiled
    def evaluate(z):
        return (step(z), energy(z))

    size = norms(limit)
    lowest = np.asarray(evaluate(limit)[1])

    def is_right(z):
        moved, here = evaluate(z)
        near = norms(jax.tree.map(lambda a, b: a - b, moved, z)) <= 10.0 * TOL * (
            1.0 + size
        )
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
    layer, (D, x) = (
        uj.lista(dim, atoms, sparsity=SPARSITY),
        dictionaries(count, dim, atoms),
    )
    step = jax.vmap(lambda D, z, x: layer.step(ListaParams(D), z, x))
    energy = jax.vmap(lambda D, z, x: layer.energy(ListaParams(D), z, x))
    return (
        layer,
        D,
        x,
        judge_of(
            lambda z: step(D, z, x),
            lambda z: energy(D, z, x),
            np.zeros((count, 1, atoms)),
        ),
    )


def lista_results(sizes, solver, dtype, max_steps):
    layer, D, x, is_right = lista_problem(*sizes)

    def solve(D, x):
        return uj.equilibrium(
            layer,
            ListaParams(D),
            jnp.zeros((1, sizes[2]), dtype),
            x,
            solver=solver,
            max_steps=max_steps,
            on_failure="accept",
        )

    z, info = compiled(jax.vmap(solve))(D.astype(dtype), x.astype(dtype))
    converged = np.ravel(info.converged)
    return int(converged.sum()), int(
        (converged & ~np.ravel(is_right(np.asarray(z, np.float64)))).sum()
    )


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
    *problem, least = case
    converged, wrong = lista_results(*problem)
    assert wrong == 0
    assert converged >= least


@nightly
@in_float64
@pytest.mark.parametrize("name", uj.DESCENTS)
def test_no_system_is_called_converged_where_it_is_wrong(name):
    descent, *given = uj.DESCENTS[name].example(jax.random.key(0), (4,))
    cast = lambda tree, dtype: jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)
    params, y, x = cast((descent.init(jax.random.key(1)), *given), jnp.float64)
    is_right = judge_of(
        lambda z: descent.step(params, z, x), lambda z: descent.energy(params, z, x), y
    )
    for dtype, max_steps in (
        (jnp.float32, 2000),
        (jnp.float32, 200),
        (jnp.float64, 200),
    ):
        options = {"max_steps": max_steps, "on_failure": "accept", "tol": TOL}

        @compiled
        def solve(params, y, x, o=options):
            return uj.equilibrium(descent, params, y, x, **o)

        z, info = solve(*cast((params, y, x), dtype))
        assert not np.any(np.ravel(info.converged) & ~is_right(cast(z, jnp.float64))), (
            dtype,
            max_steps,
            info,
        )
