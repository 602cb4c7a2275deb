"""Cross-entropy by parts: values and gradients equal the whole computation, in a
record too, for less memory."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose
from scipy.special import log_softmax

from tests.marks import in_float64
from tests.reference import compiled, gaussian, jax_array
from unroll_jax.constrained import chunked_cross_entropy


def drawn(*shape, seed=0, scale=1.0):
    return jax_array(scale * gaussian(*shape, seed=seed))


LABELS = jax_array([0, 21, 22, 5, 7, 19, 20], np.int32)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.0, 3.0, 1.0])


def in_numpy(hidden, head, slope, weights=1.0):
    """Weighted losses by all logits at once, and the pull of their slopes to hidden
    and head."""
    hidden, head, slope = (np.asarray(each, float) for each in (hidden, head, slope))
    right = np.eye(len(head))[LABELS]
    logs = log_softmax(hidden @ head.T, axis=-1)
    of_logits = (slope * weights)[..., None] * (np.exp(logs) - right)
    return -weights * np.sum(logs * right, axis=-1), (
        of_logits @ head,
        of_logits.reshape(-1, len(head)).T @ hidden.reshape(-1, head.shape[1]),
    )


@in_float64
def test_values_and_gradients_are_those_of_all_logits_at_once():
    cases = [((), 10), ((2, 3), 1), ((2, 3), 23), ((2,), 4096)]
    head = drawn(23, 5, seed=1)
    hidden = [drawn(*layers, 7, 5, scale=40.0) for layers, _ in cases]
    slopes = [drawn(*layers, 7, seed=2) for layers, _ in cases]

    def pulled(hidden, slope, chunk):
        def loss(*each):
            return chunked_cross_entropy(
                *each, LABELS, jnp.asarray(WEIGHTS), chunk=chunk
            )

        losses, pull = jax.vjp(loss, hidden, head)
        return losses, pull(slope)

    @compiled
    def run(*each):
        return [
            pulled(*one, chunk) for *one, (_, chunk) in zip(*each, cases, strict=True)
        ]

    for actual, states, slope in zip(run(hidden, slopes), hidden, slopes, strict=True):
        chex.assert_trees_all_close(
            actual, in_numpy(states, head, slope, WEIGHTS), rtol=1e-9, atol=1e-9
        )


def test_bfloat16_factors_keep_float32_sums():
    hidden = jnp.asarray(drawn(2, 7, 64), jnp.float32)
    head = jnp.asarray(drawn(300, 64, seed=1), jnp.bfloat16)
    slope = gaussian(2, 7, seed=2).astype(np.float32)

    @compiled
    def run(*given):
        losses, pull = jax.vjp(
            lambda *each: chunked_cross_entropy(
                *each, LABELS, chunk=128, dtype=jnp.bfloat16
            ),
            *given,
        )
        return losses, pull(slope)

    losses, gradients = run(hidden, head)
    expected, expected_gradients = in_numpy(hidden, head, slope)
    assert [losses.dtype, *(each.dtype for each in gradients)] == [
        jnp.float32,
        jnp.float32,
        jnp.bfloat16,
    ]
    assert_allclose(losses, expected, rtol=0.02, atol=0.05)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert np.linalg.norm(np.asarray(ours, float) - theirs) < 0.02 * np.linalg.norm(
            theirs
        )


def test_labels_may_be_of_any_integer_dtype():
    """Of 300 words, a number that 8 bits do not hold; known and traced."""
    hidden, head = drawn(7, 5), drawn(300, 5, seed=1)
    labels = [0, 43, 44, 45, 99, 126, 127]
    kinds = ("uint8", "int8", "int16", "uint16", "uint32")
    known = [jax_array(labels, kind) for kind in kinds]

    @compiled
    def run(traced):
        return [
            chunked_cross_entropy(hidden, head, y, chunk=128) for y in (*known, *traced)
        ]

    logs = log_softmax(np.asarray(hidden) @ np.asarray(head).T, axis=-1)
    expected = np.tile(-logs[np.arange(7), labels], (2 * len(kinds), 1))
    assert_allclose(run(known), expected, rtol=1e-5)
