"""Random keys whose numbers do not depend on the batch that they are drawn in."""

import jax
import jax.numpy as jnp

__all__ = ["threefry_keys"]

THREEFRY = "threefry2x32"


def threefry_keys(keys: jax.Array) -> jax.Array:
    """Returns keys of Threefry, one for each key of any implementation.

    Under `jax.vmap`, keys of "rbg" and "unsafe_rbg" draw all numbers from the first
    key of the batch. Numbers of one row would depend on the others. Keys of Threefry
    draw the same numbers in any batch, and stay as they are.

    Args:
      keys: of `jax.random.key`, of any shape.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
      >>> numbers = jax.vmap(jax.random.normal)(threefry_keys(keys))
      >>> bool(numbers[1] == jax.random.normal(threefry_keys(keys[1])))
      True
    """
    if jax.random.key_impl(keys) == THREEFRY:
        return keys

    words = jax.random.key_data(keys).reshape(*keys.shape, -1)
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold)

    zeros = jnp.zeros((*keys.shape, 2), jnp.uint32)
    made = jax.random.wrap_key_data(zeros, impl=THREEFRY)
    for place in range(words.shape[-1]):
        made = fold(made, words[..., place])
    return made
