"""Certified radii against exhaustive search and NumPy; losses of margins."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.testing import assert_allclose, assert_array_equal

import unroll_jax as uj
from tests.marks import in_float64
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.certificates import (
    LipschitzBound,
    attack,
    certified_radius,
    lipschitz,
    margin_loss,
    pad_channels,
)
from unroll_jax.energies import convex_potential

DEPTH = 3


LAYER = convex_potential(8, 8)
radii = compiled(certified_radius)
radii_of = compiled(lambda cases: [certified_radius(**case) for case in cases])
losses = compiled(margin_loss, static_argnames=("offset", "temperature"))


def drawn(seed):
    """Weights of three classes of points in the plane."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: LAYER.init(jax.random.key(0)))
    layers = jax.tree.map(lambda leaf: rng.normal(size=(DEPTH, *leaf.shape)), shapes)
    head = rng.normal(size=(8, 3))
    weights = {"layers": layers, "head": head, "bias": 0.3 * rng.normal(size=3)}
    return jax.tree.map(np.float32, weights)


@compiled
def network(weights, x):
    z = pad_channels(x, 8)
    z, _ = uj.unroll(
        LAYER, weights["layers"], z, num_layers=DEPTH, tied=False, record=None
    )
    return z @ weights["head"] + weights["bias"]


def test_no_point_within_a_radius_changes_its_class():
    """Exhaustive search: 90 directions times 10 distances up to the radius, for 300
    points of four networks. Nearly all radii are within a factor of 10 of the nearest
    other class."""
    x = np.random.default_rng(0).uniform(-2.0, 2.0, (300, 2)).astype(np.float32)
    angles = np.linspace(0.0, 2.0 * np.pi, 90, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    disc = directions[:, None] * np.linspace(0.1, 1.0, 10)[:, None]

    def classes(weights, scale):
        """Of all points of a disc."""
        points = x[:, None, None] + disc * scale[:, None, None, None]
        logits = network(weights, np.float32(points.reshape(-1, 2)))
        return np.argmax(logits, -1).reshape(len(x), -1)

    for seed in range(4):
        weights = drawn(seed)
        logits = network(weights, x)
        bound = lipschitz(
            lambda x: pad_channels(x, 8), weights["layers"], x=x, radius=10.0
        )
        radius = radii(logits, weights["head"], bound=bound)
        places = np.argmax(logits, -1)[:, None]
        assert np.all(radius >= 0.0)
        assert np.all(classes(weights, radius) == places)
        if seed == 0:
            changed = classes(weights, 10.0 * radius) != places
            assert np.mean(np.any(changed, axis=1)) > 0.5


def gaps_and_distances(logits, head, labels):
    """Of the label's class to each, of logits and of columns, (*batch, classes), 0 and
    inf to itself."""
    gaps = np.take_along_axis(logits, labels[..., None], -1) - logits
    head = np.float64(head)
    distances = np.linalg.norm(head[:, :, None] - head[:, None], axis=0)
    np.fill_diagonal(distances, np.inf)
    return gaps, distances[labels]


def test_radii_are_the_formula_rounded_down():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(3, 5, 4)).astype(np.float32)
    head = rng.normal(size=(7, 4)).astype(np.float32)
    labels = rng.integers(0, 4, (3, 5))
    gaps, distances = gaps_and_distances(np.float64(logits), head, labels)
    ratios = np.where(np.isinf(distances), np.inf, gaps / (2.0 * distances))
    expected = np.min(ratios, axis=-1)

    @compiled
    def run(logits, head, labels):
        return (
            certified_radius(logits, head, labels=labels, bound=2.0),
            certified_radius(logits, head, bound=2.0),
            certified_radius(logits),
            certified_radius(logits, head, bound=LipschitzBound(2.0, 0.1, 1.0, 9.0)),
            certified_radius(logits, head, bound=LipschitzBound(2.0, 0.0, 0.0, 0.02)),
        )

    radius, of_prediction, plain, with_errors, within = run(logits, head, labels)
    assert_allclose(radius, expected, rtol=1e-4, atol=1e-5)
    is_right = expected > 0.0
    assert np.all(radius[is_right] <= expected[is_right])
    assert not np.all(is_right)
    assert_array_equal(of_prediction[is_right], radius[is_right])
    assert np.all(of_prediction >= 0.0)
    top = np.sort(logits, axis=-1)
    assert_allclose(plain, (top[..., -1] - top[..., -2]) / np.sqrt(2.0), rtol=1e-5)
    assert_allclose(with_errors, np.maximum(of_prediction - 0.1, 0.0), atol=1e-4)
    assert_allclose(within, np.minimum(of_prediction, 0.02), atol=1e-4)
    assert np.any(of_prediction > 0.03)


def test_margins_within_rounding_have_radius_0():
    tie = np.array([1.0, 1.0, 0.0])
    close = np.array([1.0, 1.0 - 1e-7, 0.0])
    rounded = LipschitzBound(1.0, 1e-6, 1.0, 9.0)
    head = np.eye(3)
    cases = [{"logits": tie}, {"logits": tie, "labels": np.array(0)}]
    cases += [{"logits": close, "bound": rounded}]
    assert_array_equal(radii_of([{"head": head, **case} for case in cases]), 0.0)


def test_logits_that_are_not_finite_are_never_certified():
    bad = np.array([np.nan, np.inf, -np.inf])
    logits = np.tile([1.0, 0.0, 0.0], (4, 1))
    logits[:3, 1] = bad
    cases = [{"logits": logits, "head": np.eye(3)}]
    cases += [{"logits": logits[3], "head": np.diag([each, 1, 1])} for each in bad]
    radius, *of_heads = radii_of(cases)
    assert_array_equal(np.isnan(radius), [True, True, True, False])
    assert radius[3] > 0.0
    assert not np.any(np.array(of_heads) > 0.0)


def test_a_traced_unknown_label_gives_nan():
    logits = np.tile([1.0, 0.5, 0.0], (3, 1))
    labels = np.array([-1, 3, 0])
    loss = losses(logits, labels, offset=0.1, temperature=1.0)
    for values in (loss, radii(logits, labels=labels)):
        assert_array_equal(np.isnan(values), [True, True, False])


def test_empty_batches_single_classes_and_equal_columns():
    """Classes with equal columns keep their order for every input."""
    logits = {"logits": np.array([1.0, 0.0]), "head": np.ones((2, 2))}
    cases = [
        {"logits": np.ones((0, 3)), "head": np.eye(3)},
        {"logits": np.ones(1)},
        logits,
        {**logits, "labels": np.array(1)},
        {**logits, "logits": np.ones(2)},
    ]
    empty, *others = radii_of(cases)
    assert empty.shape == (0,)
    assert_array_equal(others, [np.inf, np.inf, -np.inf, 0.0])


def test_low_precision_logits_are_widened():
    logits = np.array([[1.0, 0.5], [0.25, 3.0]])
    labels = np.array([0, 0])
    loss = lambda logits: margin_loss(logits, labels, offset=0.5, temperature=0.1)
    cases = [
        {"logits": logits.astype(dtype), "head": np.eye(2, dtype=dtype)}
        for dtype in (jnp.bfloat16, np.float16)
    ]
    for case, radius in zip(cases, radii_of(cases), strict=True):
        assert radius.dtype == np.float32
        assert_allclose(radius, np.array([0.5, 2.75]) / np.sqrt(2.0), rtol=1e-4)
        assert jax.eval_shape(loss, case["logits"]).dtype == np.float32


@in_float64
def test_a_loss_with_a_head_is_the_loss_of_radii():
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(5, 3))
    head = rng.normal(size=(4, 3))
    labels = rng.integers(0, 3, 5)
    loss = losses(logits, labels, head, offset=0.5, temperature=0.2)
    gaps, distances = gaps_and_distances(logits, head, labels)
    terms = np.exp((0.5 - np.sqrt(2.0) * gaps / distances) / 0.2)
    terms = np.where(np.isinf(distances), 1.0, terms)
    assert_allclose(loss, 0.2 * np.log(np.sum(terms, axis=-1)), rtol=1e-12)


@in_float64
def test_losses_and_gradients_are_those_of_optax():
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(2, 5, 3))
    labels = rng.integers(0, 3, (2, 5))

    def expected(logits):
        shifted = (logits - 0.7 * jax.nn.one_hot(labels, 3)) / 0.2
        return 0.2 * optax.softmax_cross_entropy_with_integer_labels(shifted, labels)

    def ours(logits):
        return losses(logits, labels, offset=0.7, temperature=0.2)

    @compiled
    def both(logits):
        pulled = [jax.vjp(loss, logits) for loss in (ours, expected)]
        return [(value, pull(jnp.ones_like(value))[0]) for value, pull in pulled]

    (value, slope), (other, other_slope) = both(logits)
    assert_allclose(value, other, rtol=1e-12)
    assert_allclose(slope, other_slope, atol=1e-12)
    assert value.shape == (2, 5)


def test_radii_have_gradients_also_at_ties():
    logits = gaussian(40, 3, seed=5).astype(np.float32)
    head = gaussian(6, 3, seed=6).astype(np.float32)
    labels = np.arange(40) % 3

    @compiled
    def slopes(logits, head):
        total = lambda *given: jnp.sum(radii(*given, labels=labels))
        return jax.grad(total, (0, 1))(logits, head)

    for slope in slopes(logits, head):
        assert np.all(np.isfinite(slope))
        assert np.any(slope)
    for slope in slopes(0.0 * logits, 0.0 * head):
        assert np.all(np.isfinite(slope))


def test_labels_of_few_bits_name_one_class_of_many():
    """300 classes do not fit into 8 bits: class 259 is not class 3."""
    logits = np.zeros((1, 300), np.float32)
    logits[0, [3, 259]] = 1.0, 0.9
    dtypes = ("uint8", "int8", "int16", "int32")

    @compiled
    def run(logits, head, every):
        return [
            (
                certified_radius(logits, head, labels=labels)[0],
                margin_loss(logits, labels, offset=0.5, temperature=1.0)[0],
            )
            for labels in every
        ]

    radius, loss = np.transpose(
        run(logits, np.eye(300), [np.array([3], dtype) for dtype in dtypes])
    )
    assert_allclose(radius, 0.1 / np.sqrt(2.0), rtol=1e-3)
    assert_array_equal(loss, loss[-1])


LINEAR = gaussian(5, 3)


def linear_logits(x):
    return x @ jnp.asarray(LINEAR, x.dtype)


def test_attack_finds_the_smallest_margin_of_a_linear_classifier():
    x = gaussian(6, 5, seed=1)
    y = np.array([0, 1, 2, 0, 1, 2])
    radius = 0.3

    @compiled
    def run(x, y):
        starts = None, jax.random.key(0)
        return [attack(linear_logits, x, y, radius, start) for start in starts]

    gaps, distances = gaps_and_distances(x @ LINEAR, LINEAR, y)
    margins = np.where(np.isinf(distances), np.inf, gaps - radius * distances)
    least = margins.min(axis=1)
    for found in run(np.float32(x), y):
        # with several classes the descent may turn: it is never below the closed form
        assert np.all(found >= least - 1e-5)
        assert_allclose(found, least, atol=2e-2)


def test_attack_without_a_slope_keeps_the_margin():
    def flat(x):
        return jnp.zeros((len(x), 2)).at[:, 0].set(1.0) + 0.0 * x

    found = compiled(lambda x: attack(flat, x, jax_array([0, 1]), 0.5))(np.ones((2, 2)))
    assert found.tolist() == [1.0, -1.0]


def test_attacks_of_nan_or_arguments_out_of_range_are_nan():
    x = jax_array([5 * [1.0], 5 * [np.nan], 5 * [1.0]], np.float32)

    @compiled
    def traced(labels, radius):
        return attack(linear_logits, x, labels, radius)

    found = traced(np.array([0, 1, 7]), 0.1)
    assert np.isnan(found).tolist() == [False, True, True]
    assert np.all(np.isnan(traced(np.array([0, 1, 2]), -0.1)))


def test_constant_labels_are_checked_under_jit():
    logits = gaussian(2, 3)
    labels = jax_array([0, 2])
    radius = compiled(lambda x: certified_radius(x, labels=labels))(logits)
    assert_allclose(radius, radii(logits, labels=labels), rtol=1e-6)


def test_attack_does_not_depend_on_the_scale_of_logits():
    y = jax_array([0, 1, 2, 0, 1, 2])

    @compiled
    def run(x, scale):
        return attack(lambda x: scale * linear_logits(x), x, y, 0.3) / scale

    x = gaussian(6, 5, seed=1).astype(np.float32)
    for scale in (1e-30, 1e-15, 1e15, 1e30):
        assert_allclose(run(x, scale), run(x, 1.0), rtol=1e-4)
