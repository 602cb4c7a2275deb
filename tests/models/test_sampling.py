"""The distribution of the next token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unroll_jax.models import Sampling
from unroll_jax.models.language.sampling import Stream, log_probabilities, next_tokens, position_keys, row_keys

LOGITS = np.log([0.4, 0.1, 0.25, 0.2, 0.05])


def cut(shares, kept):
    shares = np.array([share if place in kept else 0.0 for place, share in enumerate(shares)])
    return shares / shares.sum()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), np.exp(LOGITS)),
        (Sampling(0.5), np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()),
        (Sampling(1.0, top_k=2), cut(np.exp(LOGITS), {0, 2})),
        (Sampling(1.0, top_k=9), np.exp(LOGITS)),
        (Sampling(1.0, top_p=0.7), cut(np.exp(LOGITS), {0, 2, 3})),
        (Sampling(1.0, top_p=1e-6), cut(np.exp(LOGITS), {0})),
        (Sampling(1.0, top_p=1.0), np.exp(LOGITS)),
        (Sampling(1.0, top_k=3, top_p=0.7), cut(np.exp(LOGITS), {0, 2})),  # shares of the three that top_k left
    ],
    ids=str,
)
def test_probabilities_are_sharpened_and_cut(sampling, expected):
    probabilities = np.exp(log_probabilities(jnp.asarray(np.stack([LOGITS, LOGITS[::-1]]), jnp.float32), sampling))
    np.testing.assert_allclose(probabilities, [expected, expected[::-1]], atol=1e-6)


def test_tokens_are_drawn_with_their_probabilities_and_each_use_of_a_position_has_its_own_numbers():
    rows, sampling = 4000, Sampling(1.0, top_k=4)
    logits = jnp.broadcast_to(jnp.asarray(LOGITS, jnp.float32), (rows, 5))
    keys = row_keys(jax.random.key(3), rows)
    tokens = jax.jit(lambda keys: next_tokens(logits, sampling, keys, jnp.zeros(rows, int)))(keys)
    expected = cut(np.exp(LOGITS), {0, 1, 2, 3})
    shares = np.bincount(tokens, minlength=5) / rows
    np.testing.assert_allclose(shares, expected, atol=4 * np.sqrt(0.25 / rows))  # four standard deviations at most
    assert shares[4] == 0.0
    numbers = [jax.random.uniform(position_keys(keys[:1], stream, jnp.zeros((1, 1), int))[0, 0]) for stream in Stream]
    assert len(set(map(float, numbers))) == len(Stream)
