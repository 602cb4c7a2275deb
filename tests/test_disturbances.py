"""Salt and pepper, blur and losses: against SciPy, sums written out, and counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from unroll_jax.disturbances import blur, dropped, salt_and_pepper

GREY = jnp.full((400, 500), 0.5)
KEY = jax.random.key(3)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_salt_and_pepper_replace_the_share_that_is_said_half_by_each(share):
    noisy = np.asarray(jax.jit(salt_and_pepper)(GREY, KEY, share))
    deviation = np.sqrt(0.5 * share / GREY.size)
    for value in (0.0, 1.0):
        assert np.mean(noisy == value) == pytest.approx(0.5 * share, abs=5 * deviation)
    assert set(np.unique(noisy)) == {0.0, 0.5, 1.0}


def test_salt_and_pepper_at_the_ends_of_the_share_and_with_other_values():
    np.testing.assert_array_equal(salt_and_pepper(GREY, KEY, 0.0), GREY)
    noisy = salt_and_pepper(GREY.astype(jnp.bfloat16), KEY, 1.0, low=-2.0, high=3.0)
    assert noisy.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(noisy, np.float32))) == {-2.0, 3.0}


@pytest.mark.parametrize("deviation", [0.1, 0.7, 2.125, 9.0])
def test_a_blur_is_that_of_scipy_also_where_it_is_wider_than_the_picture(deviation):
    pictures = np.random.default_rng(0).uniform(size=(2, 13, 20, 3))
    blurred = blur(jnp.asarray(pictures, jnp.float32), deviation, axes=(1, 2))
    expected = ndimage.gaussian_filter(pictures, (0.0, deviation, deviation, 0.0))
    np.testing.assert_allclose(blurred, expected, atol=1e-6)


def test_a_blur_is_the_sum_of_its_equation():
    line, deviation = np.random.default_rng(1).uniform(size=30), 1.5
    steps = np.arange(-6, 7)
    weights = np.exp(-(steps**2) / (2 * deviation**2))
    mirrored = np.concatenate([line[::-1], line, line[::-1]])
    expected = [np.sum(weights * mirrored[30 + i + steps]) / np.sum(weights) for i in range(30)]
    np.testing.assert_allclose(blur(jnp.asarray(line, jnp.float32), deviation, axes=(-1,)), expected, atol=1e-6)


def test_no_blur_leaves_a_picture_as_it_is():
    picture = jnp.asarray(np.random.default_rng(2).uniform(size=(5, 6)).astype(np.float32))
    np.testing.assert_array_equal(blur(picture, 0.0), picture)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lost_slices_are_whole_and_their_share_is_that_said(axis):
    values = jnp.ones((300, 310, 320))
    slices = np.moveaxis(np.asarray(dropped(values, KEY, 0.2, axis=axis)), axis, 0).reshape(values.shape[axis], -1)
    assert np.array_equal(slices.min(axis=1), slices.max(axis=1))
    assert np.mean(slices[:, 0] == 0.0) == pytest.approx(0.2, abs=5 * np.sqrt(0.2 * 0.8 / 300))


def test_the_last_slice_that_arrived_stands_for_a_lost_one():
    values = jnp.asarray(np.random.default_rng(4).uniform(1.0, 2.0, (40, 3)).astype(np.float32))
    lost = np.asarray(dropped(values, KEY, 0.6))[:, 0] == 0.0
    slices, shown = np.asarray(dropped(values, KEY, 0.6, fill="last")), np.zeros(3, np.float32)
    assert 10 < lost.sum() < 35
    for place in range(40):
        shown = shown if lost[place] else np.asarray(values[place])
        np.testing.assert_array_equal(slices[place], shown)
    np.testing.assert_array_equal(dropped(values, KEY, 1.0, fill="last"), np.zeros((40, 3)))
    np.testing.assert_array_equal(dropped(values, KEY, 0.0, fill="last"), values)


@pytest.mark.parametrize(
    ("disturb", "words"),
    [
        (lambda: salt_and_pepper(GREY, KEY, 1.1), r"share must be in \[0, 1\], got 1.1"),
        (lambda: dropped(GREY, KEY, float("nan")), r"share must be in \[0, 1\], got nan"),
        (lambda: dropped(GREY, KEY, 0.1, fill="mean"), r"fill must be one of \('zero', 'last'\), got 'mean'"),
        (lambda: blur(GREY, -1.0), "deviation must be finite and at least 0, got -1.0"),
        (lambda: blur(GREY, float("inf")), "deviation must be finite and at least 0, got inf"),
    ],
)
def test_what_cannot_be_is_refused(disturb, words):
    with pytest.raises(ValueError, match=words):
        disturb()
