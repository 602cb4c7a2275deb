"""The step of a call as a map of rows. Maps that do the same are equal, and compile
once."""

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import (
    ClosedJaxpr,
    Literal,
    jaxpr_as_fun,
)  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point.collectives import check_collectives, equations
from unroll_jax.fixed_point.reports import known
from unroll_jax.placement import place_like
from unroll_jax.step_checks import ORDER, check_order, check_state, check_step

__all__ = ["Prepared", "Program", "as_state", "fingerprint", "prepare", "trace"]


class Program:
    """A step ``(operands, rows) -> rows``, hashable by its computation."""

    def __init__(
        self, closed: ClosedJaxpr, tree: Any, avals: list[Any], batch_ndim: int
    ) -> None:
        self.jaxpr, self.tree, self.avals = closed.jaxpr, tree, avals
        # sizes may be symbols of `jax.export`
        self.batch: tuple[Any, ...] = avals[0].shape[:batch_ndim]
        # Relative spacing of the coarsest dtype of the state.
        self.epsilon = max(float(jnp.finfo(aval.dtype).eps) for aval in avals)
        self._dtype = functools.reduce(
            np.promote_types,  # jnp's raises under strict promotion
            (jnp.finfo(aval.dtype).dtype for aval in avals),
            jnp.float32,
        )
        self._kept: list[Any] = []  # alive as long as their identity is part of the key
        custom = [
            equation for equation in equations(closed.jaxpr) if _is_custom(equation)
        ]
        rules = _rules(closed, custom, self._kept) if custom else None
        self.key = (
            fingerprint(closed.jaxpr, self._kept),
            rules,
            tree,
            tuple(avals),
            batch_ndim,
        )
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Program)
            and self._hash == other._hash
            and self.key == other.key
        )

    def flatten(self, leaves: list[Any]) -> Float[Array, "b m"]:
        """The leaves of a state as one matrix, a row an example, float32 at least;
        complex ones as two parts."""
        rows, ndim, parts = math.prod(self.batch), len(self.batch), []
        for leaf in leaves:
            pair = (jnp.real(leaf), jnp.imag(leaf)) if _is_complex(leaf) else (leaf,)
            parts += [
                part.reshape(rows, math.prod(part.shape[ndim:])).astype(self._dtype)
                for part in pair
            ]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def leaves(self, flat: Float[Array, "b m"]) -> list[Array]:
        """The leaves of the state that `flatten` made a matrix of."""
        leaves, start = [], 0
        for aval in self.avals:
            size, pieces = math.prod(aval.shape[len(self.batch) :]), []
            # shardings that are part of the type
            explicit = any(axes is not None for axes in aval.sharding.spec)
            for _ in range(1 + _is_complex(aval)):
                piece = flat[:, start : start + size]
                pieces.append(
                    jax.lax.reshape(
                        piece,
                        aval.shape,
                        out_sharding=aval.sharding if explicit else None,
                    )
                )
                start += size
            leaf = pieces[0] if len(pieces) == 1 else jax.lax.complex(*pieces)
            leaves.append(leaf.astype(aval.dtype))
        return leaves

    def state(self, flat: Float[Array, "b m"]) -> Any:
        """The state as the user has it."""
        return jax.tree.unflatten(self.tree, self.leaves(flat))

    def apply(self, operands: Any, z: Float[Array, "b m"]) -> Float[Array, "b m"]:
        """The step on rows."""
        consts, params, x = operands
        return self.flatten(
            jaxpr_as_fun(ClosedJaxpr(self.jaxpr, consts))(*params, *self.leaves(z), *x)
        )


class Prepared(NamedTuple):
    """One call of `equilibrium`, its arguments checked; ``operands`` as of `trace`,
    ``start`` is ``y0`` as a matrix."""

    program: Program
    operands: Any
    y0: Any
    start: Float[Array, "b m"]


def prepare(
    descent: Any, params: Params, y0: Any, x: Any, batch_ndim: int | None, has_aux: bool
) -> Prepared:
    """Traces the step as a `Program`, with the arguments of `equilibrium` checked."""
    step = _step_of(descent, has_aux)
    y0 = as_state("y0", y0, is_start=True, is_complex=not isinstance(descent, Descent))
    if isinstance(descent, Descent):
        if descent.check is not None:
            descent.check(params, y0)
        batch_ndim = (
            len(jax.eval_shape(descent.energy, params, y0, x).shape)
            if batch_ndim is None
            else batch_ndim
        )
    program, operands, y0 = trace(step, params, y0, x, batch_ndim or 0)
    return Prepared(program, operands, y0, program.flatten(jax.tree.leaves(y0)))


def trace(
    step: Callable[..., Any], params: Params, y: Any, x: Any, batch_ndim: int
) -> tuple[Program, Any, Any]:
    """The program of a step, its operands, and the state where the step leaves it on a
    mesh.

    Leaves of params and x other than arrays are constants of the program. It is traced
    at every call, which sees changed globals; values that it closes over become
    operands. Shardings that are part of an array's type, and the axes of a
    `jax.shard_map` that it varies over, must not change in a loop: zeros move to where
    an input lies.
    """
    _check_batch(y, batch_ndim)
    leaves, structure = jax.tree.flatten((params, x))
    dynamic = [_is_dynamic(leaf) for leaf in leaves]
    cut = sum(dynamic[: jax.tree.structure(params).num_leaves])
    arrays = [leaf for leaf, keep in zip(leaves, dynamic, strict=True) if keep]
    state, tree = jax.tree.flatten(y)

    def call(params: list[Any], state: list[Any], x: list[Any]) -> Any:
        merged = _merged(dynamic, [*params, *x], leaves)
        whole_params, whole_x = jax.tree.unflatten(structure, merged)
        return step(whole_params, jax.tree.unflatten(tree, state), whole_x)

    def traced(state: list[Any]) -> tuple[ClosedJaxpr, list[Any]]:
        closed, after = jax.make_jaxpr(call, return_shape=True)(
            arrays[:cut], state, arrays[cut:]
        )
        _check_result(params, y, after)
        return closed, [
            place_like(leaf, aval)
            for leaf, aval in zip(state, closed.out_avals, strict=True)
        ]

    closed, moved = traced(state)
    for _ in range(2):  # a step may move the state further once it has moved
        if all(map(operator.is_, state, moved)):
            break
        state = moved
        closed, moved = traced(state)
    check_collectives(closed.jaxpr, state)
    program = Program(closed, tree, [jax.typeof(leaf) for leaf in state], batch_ndim)
    operands = jax.tree.map(
        jnp.asarray, (list(closed.consts), arrays[:cut], arrays[cut:])
    )
    return program, operands, jax.tree.unflatten(tree, state)


def fingerprint(jaxpr: Any, kept: list[Any]) -> Any:
    """A hashable equal for programs that do the same; functions and arrays count by
    identity, and join ``kept``."""
    names: dict[Any, int] = {}
    # of rules: functions made at each trace, see `_rules`
    options = ("call_jaxpr", "num_consts", "symbolic_zeros")

    def atom(var: Any) -> Any:
        if isinstance(var, Literal):
            value = np.asarray(var.val)
            return (
                str(value.dtype),
                value.shape,
                value.tobytes(),
                getattr(var.aval, "weak_type", None),
            )
        return names.setdefault(var, len(names))

    def frozen(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return fingerprint(value.jaxpr, kept), tuple(map(frozen, value.consts))
        if hasattr(value, "eqns"):
            return fingerprint(value, kept)
        if isinstance(value, tuple | list):
            return tuple(map(frozen, value))
        if isinstance(value, dict):
            return tuple(
                (key, frozen(entry))
                for key, entry in sorted(value.items(), key=lambda item: str(item[0]))
            )
        try:
            hash(value)
        except TypeError:
            return _identified(value, kept)
        return value

    head = tuple((atom(var), var.aval) for var in (*jaxpr.constvars, *jaxpr.invars))
    equations = tuple(
        (
            equation.primitive,
            frozen(
                [equation.params.get(name) for name in options]
                if _is_custom(equation)
                else equation.params
            ),
            tuple(map(atom, equation.invars)),
            tuple((atom(var), var.aval) for var in equation.outvars),
        )
        for equation in jaxpr.eqns
    )
    return head, equations, tuple(map(atom, jaxpr.outvars))


def as_state(
    name: str, y: Any, *, is_start: bool = False, is_complex: bool = False
) -> Any:
    """The state as constant arrays; an error unless they are floating, or complex
    where that is allowed, and finite."""
    check_state(name, y)
    y = jax.tree.map(lambda leaf: jax.lax.stop_gradient(jnp.asarray(leaf)), y)
    for path, leaf in jax.tree_util.tree_leaves_with_path(y):
        of_leaf = f"{name}{jax.tree_util.keystr(path)}"
        if not (is_complex and _is_complex(leaf)):
            check_dtype(of_leaf, leaf)
        finite = not (is_start and known(leaf)) or np.isfinite(np.asarray(leaf)).all()
        require(finite, of_leaf, "be finite", "NaN or infinity")
    return y


def _check_batch(y: Any, batch_ndim: int) -> None:
    lowest = min(leaf.ndim for leaf in jax.tree.leaves(y))
    allowed = f"be between 0 and {lowest}, the least rank of the state"
    require(0 <= batch_ndim <= lowest, "batch_ndim", allowed, batch_ndim)
    batches = {leaf.shape[:batch_ndim] for leaf in jax.tree.leaves(y)}
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
        raise ValueError(
            f"{error}" + f"; its value is like params: {ORDER}" * swapped
        ) from None


def _is_custom(equation: Any) -> bool:
    return equation.primitive.name in ("custom_jvp_call", "custom_vjp_call")


def _rules(closed: ClosedJaxpr, custom: list[Any], kept: list[Any]) -> Any:
    """A fingerprint of the program's derivative, as functions with custom rules look
    new at every trace.

    It shows forward mode, which is traced much sooner, unless a rule has only reverse
    mode. Arrays that rules close over count by value in NumPy, and by identity in JAX.
    A program equals only itself if it has no derivative, or its rules close over
    tracers of an outer function or see symbolic zeros (one derivative shows only some).
    """
    itself = object()
    if any(equation.params.get("symbolic_zeros") for equation in custom):
        return itself
    reverse = any(equation.primitive.name == "custom_vjp_call" for equation in custom)
    avals: list[Any] = list(closed.in_avals)
    consts = [jax.typeof(const) for const in closed.consts]
    moves = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals]

    def differentiated(
        inputs: list[Any], consts: list[Any], directions: list[Any]
    ) -> Any:
        def run(moving: list[Any]) -> Any:
            return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(
                *_merged(moves, moving, inputs)
            )

        moving = list(itertools.compress(inputs, moves))
        return (
            jax.vjp(run, moving)[1](directions)
            if reverse
            else jax.jvp(run, (moving,), (directions,))
        )

    try:
        directions = (
            list(closed.out_avals)
            if reverse
            else list(itertools.compress(avals, moves))
        )
        derivative = jax.make_jaxpr(differentiated)(avals, consts, directions)
    except (TypeError, ValueError, NotImplementedError):
        return itself
    if any(isinstance(const, Tracer) for const in derivative.consts):
        return itself
    return fingerprint(derivative.jaxpr, kept), tuple(
        _identified(const, kept) for const in derivative.consts
    )


def _identified(value: Any, kept: list[Any]) -> Any:
    """A hashable for an array: its contents for NumPy's, which may be changed in
    place, else its identity."""
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tobytes()
    kept.append(value)
    return "id", id(value)


def _merged(chosen: list[bool], moving: list[Any], others: list[Any]) -> list[Any]:
    """``others`` with the next of ``moving`` in every place that is chosen."""
    rest = iter(moving)
    return [
        next(rest) if choose else other
        for choose, other in zip(chosen, others, strict=True)
    ]


def _is_complex(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.complexfloating)


def _is_dynamic(leaf: Any) -> bool:
    """True for arrays and numbers with a fraction; flags, sizes, names and functions
    are constants of a step."""
    return isinstance(leaf, Tracer | float | complex) or (
        hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    )
