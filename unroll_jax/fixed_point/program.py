"""The step of a call as a map of rows; maps that do the same are equal."""

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
)
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point.collectives import check_collectives
from unroll_jax.fixed_point.computation import Computation, replace_entries
from unroll_jax.fixed_point.reports import known
from unroll_jax.numerics import compute_dtype
from unroll_jax.placement import place_like
from unroll_jax.step_checks import ORDER, check_order, check_state, check_step

__all__ = [
    "Problem",
    "Program",
    "as_state",
    "prepare",
    "trace",
]


class Program(NamedTuple):
    """A step ``(operands, rows) -> rows``, hashable by its computation.

    Attributes:
      computation: of operands and the leaves of a state.
      tree, avals: structure of a state, and types of its leaves.
      batch_ndim: how many leading axes of a leaf count its rows.
    """

    computation: Computation
    tree: Any
    avals: tuple[Any, ...]
    batch_ndim: int

    @property
    def batch(self) -> tuple[Any, ...]:
        """Sizes of the batch axes, which may be symbols of `jax.export`."""
        return self.avals[0].shape[: self.batch_ndim]

    @property
    def widths(self) -> tuple[Any, ...]:
        """Columns of each leaf; a complex one has two parts."""
        return tuple(
            (1 + _is_complex(aval)) * math.prod(aval.shape[self.batch_ndim :])
            for aval in self.avals
        )

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Relative spacing of the numbers of each leaf."""
        return tuple(float(jnp.finfo(aval.dtype).eps) for aval in self.avals)

    @property
    def epsilon(self) -> float:
        """Relative spacing of the coarsest dtype of the state."""
        return max(self.epsilons)

    def flatten(self, leaves: Iterable[Any]) -> Float[Array, "b m"]:
        """Returns the leaves of a state as one matrix with a row per example.

        Its dtype is float32 at least; complex leaves become two parts.
        """
        dtype = compute_dtype(*(jnp.finfo(aval.dtype).dtype for aval in self.avals))
        parts = []
        for leaf in leaves:
            width = math.prod(leaf.shape[self.batch_ndim :])
            rows = leaf.reshape(math.prod(self.batch), width)
            pair = (jnp.real(rows), jnp.imag(rows)) if _is_complex(leaf) else (rows,)
            parts += [part.astype(dtype) for part in pair]
        return jnp.concatenate(parts, axis=1)

    def leaves(self, flat: Float[Array, "b m"]) -> list[Array]:
        """Returns the leaves of the state that `flatten` made a matrix of."""
        leaves = []
        start = 0
        for aval, width in zip(self.avals, self.widths, strict=True):
            part = flat[:, start : start + width]
            start += width
            if _is_complex(aval):
                half = width // 2
                part = jax.lax.complex(part[:, :half], part[:, half:])
            # Only explicit shardings are part of the type.
            explicit = any(axes is not None for axes in aval.sharding.spec)
            sharding = aval.sharding if explicit else None
            leaf = jax.lax.reshape(part, aval.shape, out_sharding=sharding)
            leaves.append(leaf.astype(aval.dtype))
        return leaves

    def state(self, flat: Float[Array, "b m"]) -> Any:
        """The state as the user has it."""
        return jax.tree.unflatten(self.tree, self.leaves(flat))

    def apply(self, operands: list[Array], z: Float[Array, "b m"]) -> Array:
        """The step on rows."""
        return self.flatten(self.computation(*operands, *self.leaves(z)))

    def transpose(
        self, operands: list[Array], z: Float[Array, "b m"]
    ) -> Callable[[Float[Array, "b m"]], Float[Array, "b m"]]:
        """The map w -> J^T w on rows, for the Jacobian J of the step at z."""
        _, pull = jax.vjp(functools.partial(self.apply, operands), z)
        return lambda w: pull(w)[0]


class Problem(NamedTuple):
    """A traced step, with the arrays and the state that it was called with.

    Attributes:
      program: the step. It is hashable, and with the adjoint it is a static `Backward`.
      operands: its arrays.
      start: the state, with examples as rows.
    """

    program: Program
    operands: list[Array]
    start: Float[Array, "b m"]


def prepare(
    descent: Any, params: Params, y0: Any, x: Any, batch_ndim: int | None, has_aux: bool
) -> Problem:
    """Traces the step as a `Program`, with the arguments of `equilibrium` checked."""
    step = _step_of(descent, has_aux)
    y0 = as_state("y0", y0, is_start=True, is_complex=not isinstance(descent, Descent))
    if isinstance(descent, Descent):
        if descent.check is not None:
            descent.check(params, y0)
        if batch_ndim is None:
            batch_ndim = jax.eval_shape(descent.energy, params, y0, x).ndim
    return trace(step, params, y0, x, batch_ndim or 0)


def trace(
    step: Callable[..., Any], params: Params, y: Any, x: Any, batch_ndim: int
) -> Problem:
    """Returns the program of a step, its operands, and the state as rows.

    Leaves of params and x other than arrays are constants of the program. It is traced
    at every call, which sees changed globals. Values that it closes over become
    operands.

    Shardings that are part of an array's type, and the axes of a `jax.shard_map` that
    it varies over, must not change in a loop. So the state is returned where the step
    leaves it on a mesh: zeros move to where an input lies.
    """
    _check_batch(y, batch_ndim)
    leaves, structure = jax.tree.flatten((params, x))
    arrays = [leaf if _is_dynamic(leaf) else None for leaf in leaves]
    state, tree = jax.tree.flatten(y)

    def call(arrays: list[Any], state: list[Any]) -> Any:
        params, x = jax.tree.unflatten(structure, replace_entries(leaves, arrays))
        return step(params, jax.tree.unflatten(tree, state), x)

    def trace_at(state: list[Any]) -> tuple[ClosedJaxpr, list[Any]]:
        closed, after = jax.make_jaxpr(call, return_shape=True)(arrays, state)
        _check_result(params, y, after)
        return closed, list(map(place_like, state, closed.out_avals))

    closed, moved = trace_at(state)
    for _ in range(2):  # a step may move the state further once it has moved
        if all(map(operator.is_, state, moved)):
            break
        state = moved
        closed, moved = trace_at(state)
    check_collectives(closed.jaxpr, state)
    avals = tuple(map(jax.typeof, state))
    computation = Computation(closed, differentiable=True)
    program = Program(computation, tree, avals, batch_ndim)
    operands = list(map(jnp.asarray, [*closed.consts, *jax.tree.leaves(arrays)]))
    return Problem(program, operands, program.flatten(state))


def as_state(
    name: str, y: Any, *, is_start: bool = False, is_complex: bool = False
) -> Any:
    """Returns the state as constant arrays.

    Raises an error unless they are floating, or complex where that is allowed. The
    values of a start must be finite.
    """
    check_state(name, y)
    y = jax.tree.map(lambda leaf: jax.lax.stop_gradient(jnp.asarray(leaf)), y)
    for path, leaf in jax.tree_util.tree_leaves_with_path(y):
        leaf_name = f"{name}{jax.tree_util.keystr(path)}"
        if not (is_complex and _is_complex(leaf)):
            check_dtype(leaf_name, leaf)
        if is_start and known([leaf]):
            finite = np.isfinite(np.asarray(leaf)).all()
            require(finite, leaf_name, "be finite", "NaN or infinity")
    return y


def _check_batch(y: Any, batch_ndim: int) -> None:
    leaves = jax.tree.leaves(y)
    lowest = min(leaf.ndim for leaf in leaves)
    allowed = f"be between 0 and {lowest}, the least rank of the state"
    require(0 <= batch_ndim <= lowest, "batch_ndim", allowed, batch_ndim)
    batches = {leaf.shape[:batch_ndim] for leaf in leaves}
    require(
        len(batches) == 1,
        "the leaves of y0",
        f"share their first batch_ndim={batch_ndim} axes",
        sorted(batches),
    )


def _step_of(descent: Any, has_aux: bool) -> Callable[..., Any]:
    """The step ``(params, y, x) -> y'``, without aux."""
    if isinstance(descent, Descent):
        require(
            not has_aux,
            "has_aux",
            "be False for a Descent",
            has_aux,
            "pass a step (params, y, x) -> (y', aux)",
        )
        return descent.step
    if not callable(descent):
        raise TypeError(
            f"descent must be a Descent or a step (params, y, x) -> y', got {descent!r}"
        )
    check_order(descent)

    def first(params: Params, y: Any, x: Any) -> Any:
        after = descent(params, y, x)
        if not isinstance(after, tuple) or len(after) != 2:
            raise ValueError(
                "the step must return (z', aux) where has_aux=True, got"
                f" {type(after).__name__}"
            )
        return after[0]

    return first if has_aux else descent


def _check_result(params: Any, y: Any, after: Any) -> None:
    """`check_step`, with a hint where a step returned something like its first
    argument."""
    try:
        check_step(y, after)
    except ValueError as error:
        swapped = jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, params)
        hint = f"; its value is like params: {ORDER}" if swapped else ""
        raise ValueError(f"{error}{hint}") from None


def _is_complex(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.complexfloating)


def _is_dynamic(leaf: Any) -> bool:
    """True for arrays and numbers with a fraction; flags, sizes, names and functions
    are constants of a step."""
    return isinstance(leaf, float | complex) or (
        hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    )
