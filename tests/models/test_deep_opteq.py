"""DeepOptEq, in every way to its equilibrium and with regularisers, against the
layers of the paper in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.energies.dust_reference import soft
from tests.fixed_point.problems import relative_error
from tests.marks import in_float64, nightly
from tests.models.deep_opteq_by_hand import (
    EXACT,
    IMAGES,
    VECTORS,
    by_hand,
    images,
    logits_by_hand,
    start,
    vectors,
)
from tests.reference import compiled, jax_array
from unroll_jax import fixed_point as fp
from unroll_jax.certificates import spectral_normalise
from unroll_jax.energies.equilibrium.regularisers import decorrelation, half_square
from unroll_jax.models import DeepOptEq


def test_norms_of_convolutions_are_bounded_for_their_images(
    monkeypatch,
):
    told = []

    def watched(params, *, bound, image_shape, **options):
        told.append((bound, image_shape))
        return spectral_normalise(
            params, bound=bound, image_shape=image_shape, **options
        )

    monkeypatch.setattr("unroll_jax.models.opteq_base.spectral_normalise", watched)
    model = DeepOptEq(num_classes=3, channels=2, widths=(2, 2), max_norm=0.9)
    jax.eval_shape(
        model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 4, 6, 1), jnp.float32)
    )
    assert told == [(0.9, (4, 6))] * 2


@in_float64
def test_max_norm_scales_large_weights_down_and_leaves_small_ones():
    options = {
        **VECTORS,
        "num_classes": 3,
        "gradient": "unrolled",
        "num_steps": 3,
        "param_dtype": jnp.float64,
    }
    free = DeepOptEq(**options)
    x = vectors(2)
    kept = [
        DeepOptEq(**options, max_norm=0.9, norm_steps=steps) for steps in (None, 100)
    ]
    given = [start(free, x, size=size) for size in (3.6, 0.45, 0.9)]
    each = jax.tree.map(lambda *leaves: np.stack(leaves), *given)

    def logits(params):
        return [model.apply(params, x)[0] for model in (free, *kept)]

    (_, plain, expected), *others = compiled(lambda each: jax.lax.map(logits, each))(
        each
    )
    for large, small, _ in others:
        assert_allclose(large, expected, rtol=5e-3, atol=5e-4)
        assert_allclose(small, plain, rtol=1e-12)


@nightly
def test_a_norm_above_1_is_an_error_unless_allowed():
    options = {**VECTORS, "num_classes": 3, "gradient": "unrolled", "num_steps": 2}
    x = vectors(2, dtype=jnp.float32)
    plain = DeepOptEq(**options)
    params = start(plain, x, size=0.9)
    params["params"]["layer_2"]["W"] *= np.float32(2.0)
    with pytest.raises(
        ValueError, match=r"^layer 2 of 2: \|W\| must be at most 1, got 1.8"
    ):
        plain.apply(params, x)
    assert np.isfinite(
        DeepOptEq(**options, allow_expansive=True).apply(params, x)[0]
    ).all()


def run(params, *calls):
    def apply(params):
        return [model.apply(params, x, mutable="intermediates") for model, x in calls]

    return [
        (*out, np.asarray(kept["intermediates"]["equilibrium"][0]))
        for out, kept in jax.jit(apply)(params)
    ]


@in_float64
@pytest.mark.parametrize(
    ("draw", "options"),
    [(vectors, VECTORS), pytest.param(images, IMAGES, marks=nightly)],
    ids=["vectors", "images"],
)
def test_logits_are_read_from_the_equilibrium(draw, options):
    model = DeepOptEq(num_classes=3, **options, **EXACT)
    x = draw(2, 2)
    params = start(model, x)
    alone = jax_array(np.asarray(x)[1, 1])
    (logits, info, z), (logit, info_alone, one) = run(
        params, (model, x), (model, alone)
    )
    assert (logits.shape, info.converged.shape, info_alone.converged.shape) == (
        (2, 2, 3),
        (2, 2),
        (),
    )
    assert np.all(info.converged)
    for place in np.ndindex(2, 2):
        expected = by_hand(model, params, np.asarray(x)[place])
        assert_allclose(z[place], expected, atol=1e-9)
        assert_allclose(
            np.asarray(logits)[place], logits_by_hand(params, expected), atol=1e-9
        )
    assert_allclose(one, z[1, 1], atol=1e-9)
    assert_allclose(logit, np.asarray(logits)[1, 1], atol=1e-9)


@nightly
def test_a_failure_is_reported_but_not_in_init():
    model = DeepOptEq(num_classes=3, **VECTORS, max_steps=1, on_failure="error")
    x = vectors(2, dtype=jnp.float32)
    params = jax.block_until_ready(compiled(model.init)(jax.random.key(0), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="2 of 2 examples failed"):
        jax.block_until_ready(compiled(model.apply)(params, x))


@in_float64
def test_few_unrolled_steps_are_those_steps_and_no_more():
    model = DeepOptEq(
        num_classes=3,
        **VECTORS,
        gradient="unrolled",
        num_steps=3,
        param_dtype=jnp.float64,
    )
    x = vectors(2)
    params = start(model, x)
    logits, info = jax.jit(model.apply)(params, x)
    assert info.steps.tolist() == [3, 3]
    assert not np.any(info.converged)
    for row in range(2):
        expected = logits_by_hand(params, by_hand(model, params, np.asarray(x)[row], 3))
        assert_allclose(np.asarray(logits)[row], expected, atol=1e-12)


@nightly
@in_float64
def test_averaged_steps_are_those_of_equation_10():
    R = half_square(3.0)
    ways = {  # strength of the regulariser, exponent c, and how they are chosen
        "default": (1.0, 0.2, {}),
        "regulariser": (3.0, 0.2, {"regulariser": R}),
        "smoothness": (
            3.0,
            0.2,
            {"regulariser": R._replace(smoothness=None), "regulariser_smoothness": 3.0},
        ),
        "solver": (
            3.0,
            0.1,
            {"solver": fp.averaged(R.value, smoothness=R.smoothness, c=0.1)},
        ),
    }
    options = {
        **VECTORS,
        "num_classes": 3,
        "gradient": "averaged",
        "num_steps": 4,
        "param_dtype": jnp.float64,
    }
    models = {name: DeepOptEq(**options, **way) for name, (_, _, way) in ways.items()}
    x = vectors(1)
    params = start(models["default"], x)
    outputs = compiled(
        lambda params: {
            name: model.apply(params, x)[0] for name, model in models.items()
        }
    )(params)
    for name, (strength, c, _) in ways.items():
        z = np.zeros(6)
        gamma = 0.5 / strength
        for k in range(1, 5):
            beta = k**-0.5
            weight = k**-c
            moved = by_hand(models["default"], params, x[0], 1, z)
            z = (
                beta * ((1.0 - gamma * weight) * z - gamma * strength * z)
                + (1.0 - beta) * moved
            )
        assert_allclose(
            outputs[name][0],
            logits_by_hand(params, z),
            atol=1e-12,
            err_msg=name,
        )


@nightly
@in_float64
def test_a_regulariser_is_one_more_layer():
    layers = {
        "absolute": lambda z: soft(z, 0.1),
        half_square(2.0): lambda z: z / 1.2,
        "inverse_square": lambda z: z + 0.1 * 2.0 * z / (np.sum(z**2) + 1.0) ** 2,
    }
    options = {**VECTORS, **EXACT, "num_classes": 3, "regulariser_step": 0.1}
    models = [DeepOptEq(**options, regulariser=regulariser) for regulariser in layers]
    x = vectors(1)
    params = start(models[0], x)

    @jax.jit
    def run(params):
        return [model.apply(params, x, mutable="intermediates") for model in models]

    for (name, layer), ((_, info), kept) in zip(
        layers.items(), run(params), strict=True
    ):
        z = np.asarray(kept["intermediates"]["equilibrium"][0])[0]
        moved = by_hand(models[0], params, x[0], 1, z)
        assert np.all(info.converged), name
        assert_allclose(z, layer(moved), atol=1e-9, err_msg=str(name))
        assert np.linalg.norm(z - moved) > 1e-3 * np.linalg.norm(z), name


@nightly
@in_float64
def test_a_batch_regulariser_makes_one_equilibrium():
    options = {**VECTORS, **EXACT, "regulariser": decorrelation(0.05)}
    model = DeepOptEq(num_classes=3, **options)
    unrolled = DeepOptEq(num_classes=3, gradient="unrolled", num_steps=300, **options)
    x = vectors(4)
    params = start(model, x, scale=1.0)

    @jax.jit
    def run(params):
        def loss(model):
            return lambda params: (lambda out: (jnp.sum(out[0] ** 2), out[1]))(
                model.apply(params, x)
            )

        return [
            jax.value_and_grad(loss(model), has_aux=True)(params)
            for model in (model, unrolled)
        ]

    ((value, info), gradient), ((expected, _), slope) = run(params)
    assert info.converged.shape == ()
    assert info.converged
    assert_allclose(value, expected, rtol=1e-8)
    assert relative_error(gradient, slope) < 1e-6
