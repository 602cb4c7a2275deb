"""Random keys of every kind and implementation."""

import jax
import jax.numpy as jnp

__all__ = ["as_key", "threefry_keys"]

THREEFRY = "threefry2x32"


def as_key(key: jax.Array) -> jax.Array:
    """Returns the key, or keys, as typed ones. Raw keys are arrays of uint32."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)


def threefry_keys(keys: jax.Array) -> jax.Array:
    """Returns keys of Threefry, one for each key of any implementation.

    Under `jax.vmap`, keys of "rbg" and "unsafe_rbg" draw all numbers from the first key
    of the batch, so the numbers of one row would depend on the others. Keys of Threefry
    draw the same numbers in any batch, and are returned unchanged. Other keys are
    hashed to Threefry, word by word.

    Args:
      keys: of `jax.random.key` or raw, of any shape.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
      >>> numbers = jax.vmap(jax.random.normal)(threefry_keys(keys))
      >>> bool(numbers[1] == jax.random.normal(threefry_keys(keys[1])))
      True
    """
    keys = as_key(keys)
    if str(jax.random.key_impl(keys)) == THREEFRY:
        return keys

    words = jax.random.key_data(keys)
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold)

    hashed = jnp.broadcast_to(jax.random.key(0, impl=THREEFRY), keys.shape)
    for place in range(words.shape[-1]):
        hashed = fold(hashed, words[..., place])
    return hashed
