"""DeepOptEq against the layers of the paper in NumPy, iterated by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixed_point.problems import relative_error
from tests.models.deep_opteq_by_hand import EXACT, IMAGES, VECTORS, by_hand, images, logits_by_hand, start, vectors
from unroll_jax import fixed_point as fp
from unroll_jax.models import DeepOptEq


def parameter_count(model, *shape):
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(("widths", "published"), [((16, 32, 64, 128, 128), 199_338), ((16, 32, 64, 64, 128), 162_474)])
def test_the_networks_for_cifar_10_have_the_published_numbers_of_parameters(widths, published):
    model = DeepOptEq(num_classes=10, channels=32, widths=widths, input_layers=(3, 4, 5), features=32, use_bias=False)
    assert parameter_count(model, 2, 32, 32, 3) == published


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize(("draw", "options"), [(vectors, VECTORS), (images, IMAGES)], ids=["vectors", "images"])
def test_logits_are_read_from_the_equilibrium_that_iterations_by_hand_find(draw, options, batch, getkey):
    model, x = DeepOptEq(num_classes=3, **options, **EXACT), draw(getkey(), *batch)
    params = start(model, getkey(), x)
    (logits, info), kept = jax.jit(lambda params: model.apply(params, x, mutable="intermediates"))(params)
    z = kept["intermediates"]["equilibrium"][0]
    assert logits.shape == (*batch, 3)
    assert info.converged.shape == batch
    assert info.converged.all()
    for place in np.ndindex(*batch):
        expected = by_hand(model, params, x[place])
        np.testing.assert_allclose(z[place], expected, atol=1e-9)
        np.testing.assert_allclose(logits[place], logits_by_hand(params, expected), atol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("draw", "options"), [(vectors, VECTORS), (images, IMAGES)], ids=["vectors", "images"])
def test_implicit_gradients_are_those_of_an_unroll_to_convergence(draw, options, getkey):
    options = {**options, **EXACT, "max_norm": 0.8}
    implicit = DeepOptEq(num_classes=3, **options)
    unrolled = DeepOptEq(num_classes=3, way="unrolled", num_steps=150, **options)
    x = draw(getkey(), 2)
    params = start(implicit, getkey(), x)

    @jax.jit
    def gradients(params, x):
        loss = lambda model: lambda params, x: jnp.sum(jnp.sin(model.apply(params, x)[0]))  # noqa: E731
        return [jax.grad(loss(model), (0, 1))(params, x) for model in (implicit, unrolled)]

    found, expected = gradients(params, x)
    assert relative_error(found, expected) < 1e-8
    for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert relative_error(own, other) < 1e-6


@pytest.mark.usefixtures("x64")
def test_windows_of_the_equilibrium_are_averaged_where_asked(getkey):
    model, x = DeepOptEq(num_classes=3, pool=2, **IMAGES, param_dtype=jnp.float64), images(getkey(), 2)
    params = jax.jit(model.init)(getkey(), x)
    (logits, _), kept = jax.jit(lambda params: model.apply(params, x, mutable="intermediates"))(params)
    z, head = np.asarray(kept["intermediates"]["equilibrium"][0]), params["params"]["head"]["Dense_0"]
    pooled = z[:, :4, :4].reshape(2, 2, 2, 2, 2, 3).mean((2, 4)).reshape(2, -1)  # a fifth column has no window
    np.testing.assert_allclose(logits, pooled @ np.asarray(head["kernel"]) + np.asarray(head["bias"]), atol=1e-12)


@pytest.mark.parametrize("norm_steps", [None, 100])
def test_max_norm_keeps_every_layer_contracting_and_small_weights_as_they_are(norm_steps, getkey):
    options = {"convolutional": False, "channels": 6, "widths": (5, 7), "tol": 1e-6, "max_steps": 500}
    free = DeepOptEq(num_classes=3, **options)
    kept = DeepOptEq(num_classes=3, **options, max_norm=0.9, norm_steps=norm_steps)
    x = vectors(getkey(), 3)
    params = jax.jit(free.init)(getkey(), x)
    small = jax.tree.map(lambda leaf: 0.5 * leaf, params)
    large = jax.tree.map(lambda leaf: leaf, params)
    for place in (1, 2):
        W = large["params"][f"layer_{place}"]["W"]
        large["params"][f"layer_{place}"]["W"] = 4.0 * W
    scaled = jax.tree.map(lambda leaf: leaf, params)
    for place in (1, 2):
        W = np.asarray(large["params"][f"layer_{place}"]["W"])
        scaled["params"][f"layer_{place}"]["W"] = jnp.asarray(0.9 * W / np.linalg.norm(W, 2))
    with_norm, without = (jax.jit(lambda params, model=model: model.apply(params, x)) for model in (kept, free))
    logits, info = with_norm(large)
    assert info.converged.all()
    np.testing.assert_allclose(logits, without(scaled)[0], rtol=5e-3, atol=5e-4)
    np.testing.assert_allclose(with_norm(small)[0], without(small)[0], rtol=1e-5, atol=1e-6)


def test_a_norm_above_1_is_an_error_outside_of_jit_unless_it_is_allowed_or_kept_down(getkey):
    x = vectors(getkey(), 2)
    options = {**VECTORS, "num_classes": 3, "way": "unrolled", "num_steps": 2}
    params = jax.jit(DeepOptEq(**options).init)(getkey(), x)
    params["params"]["layer_2"]["W"] *= 2.0
    with pytest.raises(ValueError, match=r"^layer 2 of 2: \|W\| must be at most 1, got 1.8.*allow_expansive=True"):
        DeepOptEq(**options).apply(params, x)
    for consent in ({"allow_expansive": True}, {"max_norm": 0.9}):
        assert jnp.isfinite(DeepOptEq(**options, **consent).apply(params, x)[0]).all()
    assert jnp.isfinite(jax.jit(DeepOptEq(**options).apply)(params, x)[0]).all()


def test_bfloat16_states_keep_float32_parameters_and_logits(getkey):
    narrow, wide = (DeepOptEq(num_classes=3, **IMAGES, dtype=dtype) for dtype in (jnp.bfloat16, None))
    x = images(getkey(), 2)
    params = jax.jit(narrow.init)(getkey(), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    (logits, info), kept = jax.jit(lambda params: narrow.apply(params, x, mutable="intermediates"))(params)
    assert kept["intermediates"]["equilibrium"][0].dtype == jnp.bfloat16
    assert logits.dtype == jnp.float32
    assert info.converged.all()
    chex.assert_trees_all_close(logits, jax.jit(wide.apply)(params, x)[0], atol=0.02)


def test_a_failure_is_said_as_asked_and_never_of_the_dummy_input_of_init(getkey):
    model = DeepOptEq(num_classes=3, **VECTORS, max_steps=1, on_failure="error")
    x = vectors(getkey(), 2)
    params = jax.jit(model.init)(getkey(), x)
    with pytest.raises(fp.ConvergenceError, match="2 of 2 examples failed"):
        model.apply(params, x)
    with pytest.warns(fp.ConvergenceWarning, match="2 of 2 examples failed"):
        DeepOptEq(num_classes=3, **VECTORS, max_steps=1).apply(params, x)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "x", "error", "message"),
    [
        ({"num_classes": 0}, (2, 4), ValueError, "num_classes must be at least 1 and an integer, got 0"),
        ({"features": 0}, (2, 4), ValueError, "features must be at least 1"),
        ({"channels": 0}, (2, 4), ValueError, "channels must be at least 1"),
        ({"widths": ()}, (2, 4), ValueError, "widths must name at least one layer"),
        ({"widths": (4, 0)}, (2, 4), ValueError, r"widths must be at least 1 and an integer, got \(4, 0\)"),
        ({"num_steps": 0, "way": "unrolled"}, (2, 4), ValueError, "num_steps must be at least 1"),
        ({"norm_steps": 0}, (2, 4), ValueError, "norm_steps must be at least 1"),
        ({"input_layers": (0, 1)}, (2, 4), ValueError, r"input_layers must be numbers from 1 to 2, got \(0, 1\)"),
        ({"input_layers": (3,)}, (2, 4), ValueError, "input_layers must be numbers from 1 to 2"),
        ({"way": "explicit"}, (2, 4), ValueError, "way must be one of .*'implicit', .*got 'explicit'"),
        ({"way": "unrolled", "adjoint": "gmres"}, (2, 4), ValueError, 'adjoint must be None for way="unrolled"'),
        ({"way": "averaged", "solver": "picard"}, (2, 4), ValueError, "solver must be what averaged"),
        (
            {"way": "averaged", "solver": fp.averaged(), "regulariser": "half_square"},
            (2, 4),
            ValueError,
            "regulariser must be None",
        ),
        ({"way": "averaged", "regulariser": "absolute"}, (2, 4), ValueError, "must have a Lipschitz constant"),
        (
            {"way": "averaged", "regulariser": "half_square", "regulariser_smoothness": 2.0},
            (2, 4),
            ValueError,
            "regulariser_smoothness must be None for a regulariser that states its own, 1.0, got 2.0",
        ),
        ({"regulariser_smoothness": 0.0}, (2, 4), ValueError, "regulariser_smoothness must be positive, got 0.0"),
        ({"regulariser": "l1"}, (2, 4), ValueError, "regulariser must be one of .*'absolute'.*got 'l1'"),
        ({"regulariser": 3}, (2, 4), TypeError, "regulariser must be one of .* got int"),
        ({"activation": "gelu"}, (2, 4), ValueError, "activation must be one of"),
        ({"skip": 0.0}, (2, 4), ValueError, r"skip must be in \(0, 1\], got 0.0"),
        ({"max_norm": 0.0}, (2, 4), ValueError, "max_norm must be positive, got 0.0"),
        ({"regulariser_step": 0.0}, (2, 4), ValueError, "regulariser_step must be positive, got 0.0"),
        ({"tol": 0.0}, (2, 4), ValueError, "tol must be in"),
        ({"convolutional": True, "kernel_size": 2}, (2, 4, 4, 1), ValueError, "kernel_size must be odd"),
        ({"convolutional": True, "pool": 5}, (2, 4, 4, 1), ValueError, "pool must be at most .* 4, got 5"),
        ({"pool": 0}, (2, 4), ValueError, "pool must be at least 1"),
        ({"convolutional": True}, (4, 4), ValueError, r"x must be \(\*batch, height, width, channels\)"),
        ({}, (), ValueError, r"x must be \(\*batch, features\) with sizes of at least 1, got shape \(\)"),
        ({}, (2, 0), ValueError, r"sizes of at least 1, got shape \(2, 0\)"),
        ({}, jnp.ones((2, 4), jnp.uint8), TypeError, "x must have a floating dtype, got uint8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_argument_is_named(options, x, error, message):
    model = DeepOptEq(**{"num_classes": 3, "convolutional": False, "channels": 4, "widths": (4, 4), **options})
    with pytest.raises(error, match=message):
        jax.eval_shape(model.init, jax.random.key(0), jnp.ones(x) if isinstance(x, tuple) else x)
