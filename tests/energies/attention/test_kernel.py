"""The kernel for all pairs: values and gradients of attention, by Pallas's
interpreter; its program for a GPU."""

import functools
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unroll_jax as uj
from tests.energies.attention.examples import CAUCHY, NO_WEIGHT, numbered, tokens
from tests.reference import compiled, jax_array
from unroll_jax.descent import Anchor
from unroll_jax.energies import AttentionParams
from unroll_jax.energies.attention import kernel, kernel_choice
from unroll_jax.energies.attention.heads import HeadsParams
from unroll_jax.energies.attention.kernel import kernel_neighbourhood
from unroll_jax.energies.attention.rho import resolve_rho

N, DIM, RANK = 21, 6, 3  # no multiples of a block, no powers of two
# rho, form, ridge, anchor, padding, W_a: every rho, and any two values of the last five
# meet.
CASES = [
    ("softmax", "softmax", 0.0, False, True, False),
    ("softmax", "jacobi", 0.7, True, True, True),
    ("log", "jacobi", 0.0, False, False, True),
    ("student", "softmax", 0.0, True, True, True),
    ("truncated_quadratic", "jacobi", 0.7, True, False, False),
    (CAUCHY, "softmax", 0.7, False, False, True),
    ("cauchy", "softmax", 0.7, True, False, False),
    ("geman_mcclure", "jacobi", 0.7, False, True, False),
    ("power", "softmax", 0.7, False, True, True),
]


def test_every_rho_is_among_the_cases():
    assert set(uj.RHOS) <= {case[0] for case in CASES}


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(kernel, "INTERPRET", True)
    monkeypatch.setattr(kernel_choice, "PLATFORM", "gpu")


def close(actual, expected, tolerance):
    wide = jax.tree.map(np.float64, (actual, expected))
    for one, other in zip(*map(jax.tree.leaves, wide), strict=True):
        assert np.all(np.isfinite(other))
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other) + 1e-30


def step_energy_and_gradients(layer, params, y, x, present):
    """Gradients are in params, tokens and anchor, of the step's product with fixed
    numbers plus the energies."""
    weight = np.cos(np.arange(y.size)).reshape(y.shape)

    def loss(params, y, x):
        stepped, energy = layer.step_and_energy(params, y, Anchor(x, present))
        return jnp.sum(weight * stepped.astype(jnp.float32)) + 0.3 * jnp.sum(energy), (
            stepped,
            energy,
        )

    argnums = (0, 1, 2) if x is not None else (0, 1)
    (_, values), gradients = jax.value_and_grad(loss, argnums, has_aux=True)(
        params, y, x
    )
    return values, gradients


def rhos_of(form, ridge):
    return list(dict.fromkeys(case[0] for case in CASES if case[1:3] == (form, ridge)))


@functools.partial(compiled, static_argnums=(0, 1))
def by_xla(form, ridge, number, W_a, y, x, present):
    """One program for all cases of a form and a ridge: rho is a number in the list
    of theirs."""
    rhos = rhos_of(form, ridge)
    rho = numbered(number, rhos) if rhos[1:] else rhos[0]
    layer = uj.attention(
        rho=rho, form=form, ridge=ridge, step_size=0.8, dim=DIM, rank=DIM
    )
    return step_energy_and_gradients(layer, AttentionParams(W_a), y, x, present)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((case, "float32") for case in CASES),
        (CASES[0], "bfloat16"),
        (CASES[3], "bfloat16"),
    ],
)
def test_values_and_gradients_are_those_of_attention_in_float32(case, dtype):
    """From the same tokens. In bfloat16 products are rounded to three digits. An
    example may have no token."""
    rho, form, ridge, anchored, padded, learned = case
    options = {"dim": DIM, "rank": RANK} if learned else {}
    layer = uj.attention(
        rho=rho,
        form=form,
        ridge=ridge,
        step_size=0.8,
        kernel="pallas",
        block=16,
        **options,
    )
    W_a = np.float32(tokens(2, (DIM, RANK))) if learned else None
    y, x = (tokens(seed, (2, N, DIM)).astype(dtype) for seed in (0, 1))
    present = np.arange(N) < np.array([[13], [0]] if padded else [[N], [N]])
    given = (
        AttentionParams(W_a),
        y,
        x if anchored else None,
        present if padded else None,
    )
    actual = compiled(functools.partial(step_energy_and_gradients, layer))(*given)
    # No weight is the identity, columns of zeros add nothing, and neither do an anchor
    # of zeros and marks of all.
    square = (
        np.pad(W_a, ((0, 0), (0, DIM - RANK)))
        if learned
        else np.eye(DIM, dtype=np.float32)
    )
    wide, anchor = map(np.float32, (y, x if anchored else np.zeros_like(x)))
    values, (of_weight, *slopes) = by_xla(
        form, ridge, rhos_of(form, ridge).index(rho), square, wide, anchor, present
    )
    of_weight = AttentionParams(of_weight.W_a[:, :RANK] if learned else None)
    expected = values, (of_weight, *slopes[: 2 if anchored else 1])
    (stepped, energy), (_, slope, *_) = actual
    assert stepped.dtype == slope.dtype == dtype
    assert energy.dtype == jnp.float32
    close(actual, expected, 2e-5 if dtype == "float32" else 2e-2)
    close(energy, values[1], 2e-5 if dtype == "float32" else 5e-3)


@pytest.mark.usefixtures("interpreted")
def test_several_heads_take_it_too():
    options = {"num_heads": 2, "rank": 1, "rho": "log", "ridge": 0.3}
    y = jax_array(tokens(0, (N, DIM)), np.float32)
    present = jax_array(np.arange(N) < 17)
    layers = (
        uj.multihead_attention(DIM, **options, kernel="pallas", block=32),
        uj.multihead_attention(DIM, **options),
    )
    params = HeadsParams(np.float32(0.5 * tokens(1, (2, DIM, 1))))

    @compiled
    def run(*args):
        return [step_energy_and_gradients(layer, *args) for layer in layers]

    close(*run(params, y, None, present), 2e-5)


@pytest.mark.usefixtures("interpreted", "x64")
def test_step_and_energy_alone_are_those_of_both():
    y = jax_array(tokens(0, (N, DIM)), np.float32)
    layers = [
        uj.attention(rho="log", kernel="pallas", block=32),
        uj.attention(rho="log"),
    ]

    @compiled
    def run(*args):
        together = [layer.step_and_energy(*args) for layer in layers]
        energies = [jax.value_and_grad(layer.energy, 1)(*args) for layer in layers]
        return together, layers[0].step(*args), energies

    together, stepped, energies = run(NO_WEIGHT, y, None)
    close(*together, 2e-5)
    chex.assert_trees_all_close((stepped, energies[0][0]), together[0], rtol=1e-6)
    close(*energies, 1e-5)


@pytest.mark.usefixtures("interpreted")
def test_nan_and_infinity_reach_every_result():
    rho = resolve_rho("log")
    value = compiled(
        jax.value_and_grad(
            lambda z: sum(
                jnp.sum(part) for part in kernel_neighbourhood(rho, z, z, block=16)
            )
        )
    )
    for bad in (jnp.nan, jnp.inf):
        y = np.float32(tokens(0, (5, 3)))
        y[2, 1] = bad
        total, gradient = value(y)
        assert np.isnan(total)
        assert np.all(np.isnan(gradient[:, 1]))


@pytest.mark.usefixtures("interpreted")
def test_without_pairs_or_tokens_there_is_no_energy():
    rho = resolve_rho("truncated_quadratic")
    shapes = [(2, 0, 3), (0, 4, 3), (1, 3), (2, 0)]

    def total(z):
        around = kernel_neighbourhood(rho, z, z, block=16)
        return jnp.sum(around.energy), around

    value = jax.value_and_grad(total, has_aux=True)
    results = compiled(lambda: [value(jnp.ones(shape)) for shape in shapes])()
    for shape, ((energy, around), gradient) in zip(shapes, results, strict=True):
        assert energy == 0.0, shape
        assert gradient.shape == around.mean.shape == shape
        assert np.all(np.isneginf(around.log_degree)) == (shape != (2, 0)), shape
        assert np.all(around.mean == 0.0), shape


@pytest.mark.skipif(
    not hasattr(jax.sharding, "AbstractDevice"),
    reason="this JAX has no abstract GPU to lower for",
)
@pytest.mark.parametrize(
    "rho", ["softmax", "log", "power", "truncated_quadratic", CAUCHY]
)
def test_it_lowers_for_an_h100_without_one(rho):
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    layer = uj.attention(rho=rho, form="softmax", kernel="pallas")
    mesh = AbstractMesh(
        (1,),
        ("x",),
        abstract_device=AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu"),
    )
    checks = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    shape = jax.ShapeDtypeStruct(
        (2, 200, 62), jnp.bfloat16 if rho in ("softmax", "log") else jnp.float32
    )

    @jax.jit
    def run(y):
        return step_energy_and_gradients(layer, NO_WEIGHT, y, None, None)

    with use_abstract_mesh(mesh), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The Pallas Triton backend", DeprecationWarning
        )
        program = jax.export.export(run, platforms=["cuda"], disabled_checks=checks)(
            shape
        ).mlir_module()
    assert program.count("__gpu$xla.gpu.triton") >= 2  # forward and backward
    assert "200x200" not in program  # no array of pairs
    assert "256x256" not in program
