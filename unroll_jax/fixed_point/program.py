"""The step of a call as a map of rows; maps that do the same are equal."""

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
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
    Literal,
    jaxpr_as_fun,
)
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point.collectives import check_collectives, equations
from unroll_jax.fixed_point.reports import known
from unroll_jax.placement import place_like
from unroll_jax.step_checks import ORDER, check_order, check_state, check_step

__all__ = [
    "Prepared",
    "Program",
    "as_state",
    "close_over_nothing",
    "fingerprint",
    "prepare",
    "trace",
]


class Program:
    """A step ``(operands, rows) -> rows``, hashable by its computation."""

    def __init__(
        self, closed: ClosedJaxpr, tree: Any, avals: list[Any], batch_ndim: int
    ) -> None:
        self.jaxpr = close_over_nothing(closed)
        self.tree = tree
        self.avals = avals
        # sizes may be symbols of `jax.export`
        self.batch: tuple[Any, ...] = avals[0].shape[:batch_ndim]
        # Relative spacing of the coarsest dtype of the state.
        self.epsilon = max(float(jnp.finfo(aval.dtype).eps) for aval in avals)
        kinds = [jnp.finfo(aval.dtype).dtype for aval in avals]
        self._dtype = max((jnp.float32, *kinds), key=lambda kind: jnp.finfo(kind).bits)
        self._kept: list[Any] = []  # alive as long as their identity is part of the key
        custom = list(filter(_is_custom, equations(closed.jaxpr)))
        rules = _derivative_key(closed, custom, self._kept) if custom else None
        self.key = (
            fingerprint(self.jaxpr, self._kept),
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
        """Returns the leaves of a state as one matrix with a row per example.

        Its dtype is float32 at least; complex leaves become two parts.
        """
        rows = math.prod(self.batch)
        ndim = len(self.batch)
        parts = []
        for leaf in leaves:
            pair = (jnp.real(leaf), jnp.imag(leaf)) if _is_complex(leaf) else (leaf,)
            for part in pair:
                width = math.prod(part.shape[ndim:])
                parts.append(part.reshape(rows, width).astype(self._dtype))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def leaves(self, flat: Float[Array, "b m"]) -> list[Array]:
        """Returns the leaves of the state that `flatten` made a matrix of."""
        leaves = []
        start = 0
        for aval in self.avals:
            size = math.prod(aval.shape[len(self.batch) :])
            # Only explicit shardings are part of the type.
            explicit = any(axes is not None for axes in aval.sharding.spec)
            sharding = aval.sharding if explicit else None
            pieces = []
            for _ in range(2 if _is_complex(aval) else 1):
                piece = flat[:, start : start + size]
                pieces.append(jax.lax.reshape(piece, aval.shape, out_sharding=sharding))
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
        step = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, []))
        return self.flatten(step(*consts, *params, *self.leaves(z), *x))


class Prepared(NamedTuple):
    """One call of `equilibrium` with checked arguments.

    Attributes:
      program, operands: of `trace`.
      y0, start: the initial state, and the same as a matrix.
    """

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
        if batch_ndim is None:
            batch_ndim = jax.eval_shape(descent.energy, params, y0, x).ndim
    program, operands, y0 = trace(step, params, y0, x, batch_ndim or 0)
    return Prepared(program, operands, y0, program.flatten(jax.tree.leaves(y0)))


def trace(
    step: Callable[..., Any], params: Params, y: Any, x: Any, batch_ndim: int
) -> tuple[Program, Any, Any]:
    """Returns the program of a step, its operands, and the state.

    Leaves of params and x other than arrays are constants of the program. It is traced
    at every call, which sees changed globals. Values that it closes over become
    operands.

    Shardings that are part of an array's type, and the axes of a `jax.shard_map` that
    it varies over, must not change in a loop. So the state is returned where the step
    leaves it on a mesh: zeros move to where an input lies.
    """
    _check_batch(y, batch_ndim)
    leaves, structure = jax.tree.flatten((params, x))
    dynamic = [_is_dynamic(leaf) for leaf in leaves]
    cut = sum(dynamic[: jax.tree.structure(params).num_leaves])
    arrays = [leaf for leaf, keep in zip(leaves, dynamic, strict=True) if keep]
    state, tree = jax.tree.flatten(y)

    def call(params: list[Any], state: list[Any], x: list[Any]) -> Any:
        merged = _merge(dynamic, [*params, *x], leaves)
        all_params, all_x = jax.tree.unflatten(structure, merged)
        return step(all_params, jax.tree.unflatten(tree, state), all_x)

    def trace_at(state: list[Any]) -> tuple[ClosedJaxpr, list[Any]]:
        trace_call = jax.make_jaxpr(call, return_shape=True)
        closed, after = trace_call(arrays[:cut], state, arrays[cut:])
        _check_result(params, y, after)
        return closed, list(map(place_like, state, closed.out_avals))

    closed, moved = trace_at(state)
    for _ in range(2):  # a step may move the state further once it has moved
        if all(map(operator.is_, state, moved)):
            break
        state = moved
        closed, moved = trace_at(state)
    check_collectives(closed.jaxpr, state)
    program = Program(closed, tree, [jax.typeof(leaf) for leaf in state], batch_ndim)
    operands = jax.tree.map(
        jnp.asarray, (list(closed.consts), arrays[:cut], arrays[cut:])
    )
    return program, operands, jax.tree.unflatten(tree, state)


def close_over_nothing(closed: ClosedJaxpr) -> Any:
    """Returns the program with its constants as first inputs.

    A program that is kept must hold no array of a user. JAX converts NumPy arrays to
    its dtypes once, and traces the converted array while something holds it, also after
    the original has changed. So arrays in literals and inner programs are copied.
    """
    jaxpr = _copy_arrays(closed, {}).jaxpr
    return jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])


def fingerprint(jaxpr: Any, kept: list[Any]) -> Any:
    """Returns a hashable that is equal for programs that do the same.

    Functions and arrays of JAX count by identity, and are added to ``kept``: they must
    live as long as the hashable.
    """
    names: dict[Any, int] = {}
    # The other parameters are functions made at each trace, see `_derivative_key`.
    options = ("call_jaxpr", "num_consts", "symbolic_zeros")

    def atom(var: Any) -> Any:
        if isinstance(var, Literal):
            weak = getattr(var.aval, "weak_type", None)
            return *_array_key(np.asarray(var.val), kept), weak
        return names.setdefault(var, len(names))

    def freeze(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return fingerprint(value.jaxpr, kept), tuple(map(freeze, value.consts))
        if hasattr(value, "eqns"):
            return fingerprint(value, kept)
        if isinstance(value, tuple | list):
            return tuple(map(freeze, value))
        if isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: str(item[0]))
            return tuple((key, freeze(entry)) for key, entry in items)
        try:
            hash(value)
        except TypeError:
            return _array_key(value, kept)
        return value

    def freeze_equation(equation: Any) -> Any:
        params = equation.params
        if _is_custom(equation):
            params = [params.get(name) for name in options]
        inputs = tuple(map(atom, equation.invars))
        outputs = tuple((atom(var), var.aval) for var in equation.outvars)
        return equation.primitive, freeze(params), inputs, outputs

    head = tuple((atom(var), var.aval) for var in (*jaxpr.constvars, *jaxpr.invars))
    body = tuple(map(freeze_equation, jaxpr.eqns))
    return head, body, tuple(map(atom, jaxpr.outvars))


def _copy_arrays(value: Any, copies: dict[int, Any]) -> Any:
    """Returns a part of a program with copies of NumPy's arrays.

    ``copies`` holds those of programs by identity: one that is called twice stays one.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Literal) and isinstance(value.val, np.ndarray):
        return Literal(value.val.copy(), value.aval)
    if type(value) is tuple:
        return tuple(_copy_arrays(entry, copies) for entry in value)
    if type(value) is list:
        return [_copy_arrays(entry, copies) for entry in value]
    if not (isinstance(value, ClosedJaxpr) or hasattr(value, "eqns")):
        return value
    if id(value) in copies:
        return copies[id(value)]

    program: Any = value.jaxpr if isinstance(value, ClosedJaxpr) else value
    eqns = []
    for equation in program.eqns:
        params = {
            name: _copy_arrays(param, copies) for name, param in equation.params.items()
        }
        invars = _copy_arrays(equation.invars, copies)
        eqns.append(equation.replace(invars=invars, params=params))
    copy = program.replace(eqns=eqns, outvars=_copy_arrays(program.outvars, copies))
    if isinstance(value, ClosedJaxpr):
        copy = ClosedJaxpr(copy, _copy_arrays(list(value.consts), copies))
    copies[id(value)] = copy
    return copy


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
        if is_start and known(leaf):
            finite = np.isfinite(np.asarray(leaf)).all()
            require(finite, leaf_name, "be finite", "NaN or infinity")
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
        hint = f"; its value is like params: {ORDER}" if swapped else ""
        raise ValueError(f"{error}{hint}") from None


def _is_custom(equation: Any) -> bool:
    return equation.primitive.name in ("custom_jvp_call", "custom_vjp_call")


def _derivative_key(closed: ClosedJaxpr, custom: list[Any], kept: list[Any]) -> Any:
    """Fingerprints the derivative, as functions with custom rules look new each time.

    It is the JVP, which is quicker to trace, or the VJP if a rule has only that. Arrays
    that rules close over count by value in NumPy, and by identity in JAX. Rules should
    not close over arrays of NumPy that change in place: JAX keeps what it converts.

    A program equals only itself if it has no derivative, or its rules close over
    tracers of an outer function or see symbolic zeros: one derivative shows only some.
    """
    itself = object()
    if any(equation.params.get("symbolic_zeros") for equation in custom):
        return itself
    reverse = any(equation.primitive.name == "custom_vjp_call" for equation in custom)
    avals: list[Any] = list(closed.in_avals)
    consts = [jax.typeof(const) for const in closed.consts]
    moves = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals]

    def differentiate(
        inputs: list[Any], consts: list[Any], directions: list[Any]
    ) -> Any:
        step = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))

        def run(moving: list[Any]) -> Any:
            return step(*_merge(moves, moving, inputs))

        moving = list(itertools.compress(inputs, moves))
        if reverse:
            return jax.vjp(run, moving)[1](directions)
        return jax.jvp(run, (moving,), (directions,))

    directions = list(itertools.compress(avals, moves))
    if reverse:
        directions = list(closed.out_avals)
    try:
        derivative = jax.make_jaxpr(differentiate)(avals, consts, directions)
    except (TypeError, ValueError, NotImplementedError):
        return itself
    if any(isinstance(const, Tracer) for const in derivative.consts):
        return itself
    values = tuple(_array_key(const, kept) for const in derivative.consts)
    return fingerprint(derivative.jaxpr, kept), values


def _array_key(value: Any, kept: list[Any]) -> Any:
    """Returns a hashable for an array: contents in NumPy, else the identity.

    NumPy's arrays may be changed in place. Other values are added to ``kept``.
    """
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tobytes()
    kept.append(value)
    return "id", id(value)


def _merge(chosen: list[bool], moving: list[Any], others: list[Any]) -> list[Any]:
    """Returns ``others`` with the next of ``moving`` in every place that is chosen."""
    rest = iter(moving)
    pairs = zip(chosen, others, strict=True)
    return [next(rest) if choose else other for choose, other in pairs]


def _is_complex(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.complexfloating)


def _is_dynamic(leaf: Any) -> bool:
    """True for arrays and numbers with a fraction; flags, sizes, names and functions
    are constants of a step."""
    return isinstance(leaf, Tracer | float | complex) or (
        hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    )
