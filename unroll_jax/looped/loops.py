"""Any number of loops of one tied block in one program, the last with gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unroll_jax.arguments import at_least, check, checked, require
from unroll_jax.descent import Descent, Params
from unroll_jax.step_checks import check_state, check_step
from unroll_jax.unrolling import unroll

__all__ = ["run_loops"]

Step = Callable[[Params, Any, Any], Any]


@checked(most=at_least(1))
def run_loops(
    block: Descent | Step,
    params: Params,
    state: Any,
    x: Any = None,
    *,
    loops: Any,
    free: Any = 0,
    most: int | None = None,
    record: Callable[[Any], Any] | None = None,
    remat: bool | Callable[..., Any] = False,
) -> tuple[Any, Any]:
    r"""Applies one block again and again: :math:`h_{l+1} = f(\theta, h_l, x)`.

    First it runs ``free`` loops without gradient or records, in constant memory, then
    ``loops`` with both. ``free=sample_far_start(key, 60)`` gives a far start. ``free,
    loops = sample_segment(key, 20)`` gives Bansal's progressive loss.

    Neither the time to compile nor the size of the program grows with the number of
    loops.

    Args:
      block: a step ``(params, h, x) -> h'``, or a `Descent`.
      params: of the block: any pytree, such as a module of Equinox or the state of an
        nnx module.
      state: h before the first loop, a pytree of arrays.
      x: the input that every loop sees, or None.
      loops: number of loops with gradients, an int, at least 1, or a traced integer
        from 0 to ``most``. Larger ones are cut.
      free: number of loops before them, an int or a traced integer, at least 0.
        ``state`` has a gradient only if it is 0.
      most: largest value of traced ``loops``. Skipped loops repeat the last record, so
        ``records[-1]`` is that of the last loop.
      record: ``h -> pytree``, inside the scan, before the first loop and after each,
        such as a loss. None is nothing.
      remat: recomputes each loop in the backward pass, see `unroll_jax.unroll`. A loop
        then keeps only its state.

    Returns:
      ``(state, records)``: the state after the last loop, and the records, stacked
      along a new leading axis.

    Source: Geiping et al., "Scaling up test-time compute with latent reasoning" (2025),
    Section 3, for random numbers of loops and truncated gradients. Bansal et al.,
    "End-to-end algorithm synthesis with recurrent networks" (2022).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = lambda weight, h, x: jnp.tanh(h @ weight + x)
      >>> weight, x = 0.1 * jnp.eye(3), jnp.ones((8, 3))
      >>> options = {"most": 32, "record": jnp.mean}
      >>> run = lambda n: run_loops(step, weight, 0.0 * x, x, loops=n, **options)
      >>> state, records = jax.jit(run)(3)
      >>> records.shape, bool(records[3] == records[32])
      ((33,), True)
    """
    function = block.step if isinstance(block, Descent) else block
    check_state("state", state)
    state = jax.tree.map(jnp.asarray, state)
    free = _as_number("free", free, least=0)
    loops = _as_number("loops", loops, least=1)

    def step(h: Any) -> Any:
        return function(params, h, x)

    check_step(state, jax.eval_shape(step, state), what="block")
    if not (isinstance(free, int) and free == 0):
        state = _without_gradient(step, state, free)
    if isinstance(loops, int):
        left = None
        count = loops
    else:
        allowed = "be the largest number of loops where loops is traced"
        require(most is not None, "most", allowed, most)
        left = loops
        count = most

    # `unroll` carries the loops that are left too. Where their number is traced,
    # `jax.lax.cond` skips the others.
    def advance(_: Any, carried: Any, __: Any) -> Any:
        h, left = carried
        if left is None:
            return step(h), None
        return jax.lax.cond(left > 0, step, lambda h: h, h), left - 1

    measure = None if record is None else lambda _, carried, __: record(carried[0])
    scan = {"num_layers": count, "remat": remat, "unroll": 1, "record": measure}
    (state, _), records = unroll(advance, None, (state, left), **scan)
    return state, records


def _as_number(name: str, value: Any, *, least: int) -> Any:
    """Returns a known number of loops as an int, checked, a JAX array as an int32."""
    is_number = isinstance(value, jax.Array) and value.shape == ()
    if is_number and jnp.issubdtype(value.dtype, jnp.integer):
        return value.astype(jnp.int32)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    check(name, value, at_least(least))
    return int(value)


def _without_gradient(step: Callable[[Any], Any], state: Any, free: Any) -> Any:
    """Returns the state after ``free`` loops, detached, or the state itself if 0."""
    # The constants are everything differentiated, parameters included.
    function, constants = jax.closure_convert(step, state)
    constants = jax.lax.stop_gradient(constants)
    start = jax.lax.stop_gradient(state)
    after = jax.lax.fori_loop(0, free, lambda _, h: function(h, *constants), start)
    if isinstance(free, int):
        return after
    return jax.tree.map(lambda far, near: jnp.where(free > 0, far, near), after, state)
