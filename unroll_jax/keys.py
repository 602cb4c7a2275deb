"""Random keys of every kind and implementation."""

import jax
import jax.numpy as jnp

__all__ = ["as_key", "batchable"]

THREEFRY = "threefry2x32"


def as_key(key: jax.Array) -> jax.Array:
    """The key, or keys, as typed ones: arrays of uint32 are raw keys."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)


def batchable(key: jax.Array) -> jax.Array:
    """A key of "threefry2x32", whose draws under `jax.vmap` are those without.

    Of a batch of keys of "rbg" and "unsafe_rbg", JAX draws from the first one only. A
    key of another implementation is hashed to one of "threefry2x32", word by word.
    """
    key = as_key(key)
    if str(jax.random.key_impl(key)) == THREEFRY:
        return key
    words = jax.random.key_data(key)
    start = jnp.broadcast_to(jax.random.key(0, impl=THREEFRY), key.shape)
    fold = jax.random.fold_in
    for _ in range(key.ndim):
        fold = jax.vmap(fold)
    for place in range(words.shape[-1]):
        start = fold(start, words[..., place])
    return start
