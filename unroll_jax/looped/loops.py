"""Loops of one tied block: any number of them in one program, with gradients through all, the last ones, or none."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from unroll_jax.arguments import POSITIVE, at_least, check, checked, one_of, require
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point import EquilibriumInfo, equilibrium
from unroll_jax.looped.exits import loops_until_still
from unroll_jax.steps import check_state, check_step
from unroll_jax.unrolling import unroll

__all__ = ["GRADIENTS", "Loops", "last_loops", "run_loops"]

#: Gradients of `run_loops`: through the loops, at the equilibrium that they approach, or none, with exits.
GRADIENTS = ("unrolled", "implicit", "none")

Step = Callable[[Params, Any, Any], Any]


class Loops(NamedTuple):
    """The result of `run_loops`.

    Attributes:
      state: after the last loop; the start of further ones.
      records: what ``record`` returned, stacked along a new leading axis: before the first loop and after each; None
        without.
      info: of `equilibrium`, if the gradient is implicit, else None.
      taken: loops of each example, (*batch), if there is no gradient, else None.

    Example:
      >>> import jax.numpy as jnp
      >>> first = run_loops(lambda w, h, x: w * h + x, 0.5, jnp.array(8.0), 0.0, loops=2)
      >>> float(first.state), float(run_loops(lambda w, h, x: w * h + x, 0.5, first.state, 0.0, loops=1).state)
      (2.0, 1.0)
    """

    state: Any
    records: Any
    info: EquilibriumInfo | None = None
    taken: Int[Array, "*batch"] | None = None


@checked(most=at_least(1), gradient=one_of(GRADIENTS))
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
    gradient: str = "unrolled",
    **options: Any,
) -> Loops:
    r"""Applies one block again and again: :math:`h_{l+1} = f(\theta, h_l, x)`.

    First run ``free`` loops without gradient or records, in constant memory; then ``loops`` with both. With
    ``free=0`` these are all. Huginn's truncated gradient is ``free, loops = last_loops(total, 8)``; a far start is
    ``free=sample_far_start(key, 60)``; Bansal's progressive loss ``free, loops = sample_segment(key, 20)``.

    Neither the time to compile nor the size of the program grows with the number of loops.

    Args:
      block: a step ``(params, h, x) -> h'``, or a `Descent`.
      params: of the block: any pytree, such as a module of Equinox or the state of an nnx module.
      state: h before the first loop, a pytree of arrays.
      x: the input that every loop sees, or None.
      loops: how many with gradients: an int, at least 1, or a traced integer from 0 to ``most``; larger ones are cut.
      free: how many before them: an int or a traced integer, at least 0. The gradient flows into ``state`` only where
        this is 0.
      most: largest value of traced ``loops``. Loops beyond a traced number are skipped, and their records repeat the
        last one: ``records[-1]`` is always that of the last loop.
      record: ``h -> pytree``, evaluated inside the scan, such as the loss of a readout; None records nothing.
      remat: recompute each loop in the backward pass, see `unroll_jax.unroll`. A loop then costs the memory of its
        state.
      gradient: one of `GRADIENTS`. "implicit" returns the `equilibrium` of the block, found in at most ``loops``
        steps, and its implicit gradient; memory does not depend on the number of steps. Records are those of the first
        state and of the equilibrium. "none" is for tests: each example stops at the first loop that changes its state
        by less than ``threshold`` of the state's size, a number of `exit_threshold`, or after ``loops``; records are
        those of the first and the last state. Differentiating it is an error of JAX.
      **options: of `equilibrium`, if implicit, such as ``batch_ndim`` and ``tol``; ``threshold`` and ``batch_ndim``, 1
        by default, if there is no gradient. Tokens stop each by itself with ``batch_ndim=2``.

    Returns:
      A `Loops`.

    Raises:
      ValueError: if a number of loops is out of range, a traced one has no ``most``, or the block changes the state's
        structure, shapes or dtypes.
      TypeError: if a number of loops is not an integer, or options are given that the gradient does not take.

    Source: Geiping et al., "Scaling up test-time compute with latent reasoning" (2025), Section 3, for random numbers
    of loops and truncated gradients; Bansal et al., "End-to-end algorithm synthesis with recurrent networks" (2022).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = lambda weight, h, x: jnp.tanh(h @ weight + x)
      >>> weight, x = 0.1 * jnp.eye(3), jnp.ones((8, 3))
      >>> run = jax.jit(lambda n: run_loops(step, weight, 0.0 * x, x, loops=n, most=32, record=jnp.mean).records)
      >>> run(3).shape, bool(run(3)[3] == run(3)[32])
      ((33,), True)
    """
    step = block.step if isinstance(block, Descent) else block
    check_state("state", state)
    state = jax.tree.map(jnp.asarray, state)
    free, loops = _as_number("free", free, least=0), _as_number("loops", loops, least=1)
    check_step(state, jax.eval_shape(lambda h: step(params, h, x), state), what="block")
    if not (isinstance(free, int) and free == 0):
        state = _without_gradient(lambda h: step(params, h, x), state, free)
    if gradient != "unrolled":
        if not isinstance(loops, int):
            raise TypeError(f"loops must be an int with gradient={gradient!r}, got {loops!r}")
        if gradient == "implicit":
            y, info = equilibrium(block, params, state, x, max_steps=loops, **options)
            return Loops(y, _ends(record, state, y), info)
        if "threshold" not in options or not set(options) <= {"threshold", "batch_ndim"}:
            raise TypeError(f'gradient="none" takes threshold, and batch_ndim unless it is 1, got {sorted(options)}')
        y, taken = _with_exits(lambda h: step(params, h, x), state, loops, **options)
        return Loops(y, _ends(record, state, y), taken=taken)
    if options:
        raise TypeError(f'{sorted(options)} are options of gradient="implicit" or "none", got gradient={gradient!r}')
    if not isinstance(loops, int):
        require(most is not None, "most", "be the largest number of loops where loops is traced", most)
        return _some_loops(lambda h: step(params, h, x), state, loops, most, record, remat)

    def measure(_: Any, h: Any, __: Any) -> Any:
        return record(h) if record is not None else None

    measured = None if record is None else measure
    scan = {"num_layers": loops, "remat": remat, "unroll": 1, "record": measured}
    return Loops(*unroll(lambda _, h, __: step(params, h, x), None, state, **scan))


def last_loops(total: Any, window: int) -> tuple[Any, Any]:
    """Splits a number of loops in those without gradient and the last ones with, for `run_loops`.

    Args:
      total: all loops, an int or a traced integer.
      window: largest number of loops with gradient; pass it as ``most`` too if ``total`` is traced.

    Returns:
      ``(free, loops)``, which sum up to ``total``.

    Example:
      >>> last_loops(20, 8), last_loops(5, 8)
      ((12, 8), (0, 5))
    """
    if isinstance(total, int):
        return max(total - window, 0), min(total, window)
    return jnp.maximum(total - window, 0), jnp.minimum(total, window)


def _as_number(name: str, value: Any, *, least: int) -> Any:
    """A known number of loops as an int, checked; a traced one, or an array of JAX, as it is."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.integer) and value.shape == ():
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    check(name, value, at_least(least))
    return int(value)


def _without_gradient(step: Callable[[Any], Any], state: Any, free: Any) -> Any:
    """The state after ``free`` loops, detached; where there are none the state itself."""
    function, constants = jax.closure_convert(step, state)  # what is differentiated, the parameters among it
    constants = jax.lax.stop_gradient(constants)
    start = jax.lax.stop_gradient(state)
    after = jax.lax.fori_loop(0, free, lambda _, h: function(h, *constants), start)
    if isinstance(free, int):
        return after
    return jax.tree.map(lambda far, near: jnp.where(free > 0, far, near), after, state)


def _some_loops(
    step: Callable[[Any], Any], state: Any, loops: Any, most: Any, record: Any, remat: bool | Callable[..., Any]
) -> Loops:
    """The first ``loops`` of ``most``: `jax.lax.cond` skips the others."""

    def advance(_: Any, carried: Any, __: Any) -> Any:
        h, left = carried
        return jax.lax.cond(left > 0, step, lambda h: h, h), left - 1

    def measure(_: Any, carried: Any, __: Any) -> Any:
        return record(carried[0])

    scan = {"num_layers": most, "remat": remat, "unroll": 1, "record": None if record is None else measure}
    (state, _), records = unroll(advance, None, (state, jnp.asarray(loops, jnp.int32)), **scan)
    return Loops(state, records)


@checked(threshold=POSITIVE, batch_ndim=at_least(0))
def _with_exits(step: Callable[[Any], Any], state: Any, loops: int, *, threshold: float, batch_ndim: int = 1) -> Any:
    return loops_until_still(step, state, most=loops, threshold=threshold, batch_ndim=batch_ndim)


def _ends(record: Callable[[Any], Any] | None, *states: Any) -> Any:
    """Records of the first and the last state, stacked."""
    return None if record is None else jax.tree.map(lambda *pair: jnp.stack(pair), *map(record, states))
