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
    Literal,
    jaxpr_as_fun,
)
from jaxtyping import Array, Float

from unroll_jax.arguments import require
from unroll_jax.arrays import check_dtype
from unroll_jax.descent import Descent, Params
from unroll_jax.fixed_point.collectives import check_collectives, equations
from unroll_jax.fixed_point.reports import is_traced, known
from unroll_jax.numerics import compute_dtype
from unroll_jax.placement import place_like
from unroll_jax.step_checks import ORDER, check_order, check_state, check_step

__all__ = [
    "NO_DERIVATIVE",
    "Computation",
    "Problem",
    "Program",
    "as_state",
    "prepare",
    "trace",
]


# Errors of a function without a derivative.
NO_DERIVATIVE = (TypeError, ValueError, NotImplementedError)


class Computation:
    """A traced function of its constants and inputs, hashable by what it does.

    With ``differentiable``, functions that do the same have the same derivatives.
    """

    def __init__(self, closed: ClosedJaxpr, *, differentiable: bool) -> None:
        self._jaxpr = _close_over_nothing(closed)
        self._kept: list[Any] = []  # alive as long as their identity is part of the key
        count = len(closed.consts)
        rules = differentiable and _derivative_key(self._jaxpr, count, self._kept)
        self._key = _fingerprint(self._jaxpr, self._kept), rules
        self._hash = hash(self._key)

    def __call__(self, *inputs: Any) -> list[Any]:
        """The values of the traced function."""
        return jaxpr_as_fun(ClosedJaxpr(self._jaxpr, []))(*inputs)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Computation) and self._key == other._key


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
      program, operands: the step, and its arrays.
      state, start: the state, and the same as a matrix.
    """

    program: Program
    operands: list[Array]
    state: Any
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
    arrays = [leaf if _is_dynamic(leaf) else None for leaf in leaves]
    state, tree = jax.tree.flatten(y)

    def call(arrays: list[Any], state: list[Any]) -> Any:
        params, x = jax.tree.unflatten(structure, _replace(leaves, arrays))
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
    y = jax.tree.unflatten(tree, state)
    return Problem(program, operands, y, program.flatten(state))


def _close_over_nothing(closed: ClosedJaxpr) -> Any:
    """Returns the program with its constants as first inputs.

    A program that is kept must hold no array of a user. JAX converts NumPy arrays to
    its dtypes once, and traces the converted array while something holds it, also after
    the original has changed. So arrays in literals and inner programs are copied.
    """
    jaxpr = _copy_arrays(closed).jaxpr
    return jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])


def _copy_arrays(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns a program with copies of NumPy's arrays.

    An inner program that is called twice stays one.
    """
    copies: dict[int, Any] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, Literal):
            return Literal(copy(value.val), value.aval)
        if not hasattr(value, "eqns"):
            return value
        if id(value) not in copies:
            copies[id(value)] = copy_program(value)
        return copies[id(value)]

    def copy_program(value: Any) -> Any:
        jaxpr = getattr(value, "jaxpr", value)
        eqns = []
        for equation in jaxpr.eqns:
            invars, params = jax.tree.map(copy, (equation.invars, equation.params))
            eqns.append(equation.replace(invars=invars, params=params))
        jaxpr = jaxpr.replace(eqns=eqns, outvars=list(map(copy, jaxpr.outvars)))
        if not isinstance(value, ClosedJaxpr):
            return jaxpr
        return ClosedJaxpr(jaxpr, list(map(copy, value.consts)))

    return copy(closed)


def _fingerprint(jaxpr: Any, kept: list[Any]) -> Any:
    """Returns a hashable that is equal for programs that do the same.

    Functions and arrays of JAX count by identity, and are added to ``kept``: they must
    live as long as the hashable.
    """
    names: dict[Any, int] = {}
    # The other parameters are functions made at each trace, see `_derivative_key`.
    options = ("call_jaxpr", "num_consts", "symbolic_zeros")

    def atom(var: Any) -> Any:
        if isinstance(var, Literal):
            return _array_key(np.asarray(var.val), kept), var.aval
        return names.setdefault(var, len(names))

    def typed_atom(var: Any) -> Any:
        return atom(var), var.aval

    def freeze(value: Any) -> Any:
        if hasattr(value, "eqns"):
            consts = getattr(value, "consts", ())
            jaxpr = getattr(value, "jaxpr", value)
            return _fingerprint(jaxpr, kept), tuple(map(freeze, consts))
        try:
            hash(value)
        except TypeError:
            return _array_key(value, kept)
        return value

    def freeze_equation(equation: Any) -> Any:
        params = equation.params
        if _is_custom(equation):
            params = [params.get(name) for name in options]
        values, structure = jax.tree.flatten(params)
        inputs = tuple(map(atom, equation.invars))
        outputs = tuple(map(typed_atom, equation.outvars))
        frozen = tuple(map(freeze, values))
        return equation.primitive, structure, frozen, inputs, outputs

    head = tuple(map(typed_atom, (*jaxpr.constvars, *jaxpr.invars)))
    body = tuple(map(freeze_equation, jaxpr.eqns))
    return head, body, tuple(map(atom, jaxpr.outvars))


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


def _is_custom(equation: Any) -> bool:
    return equation.primitive.name in ("custom_jvp_call", "custom_vjp_call")


def _derivative_key(jaxpr: Any, num_consts: int, kept: list[Any]) -> Any:
    """Fingerprints the derivative, as functions with custom rules look new each time.

    The first inputs are constants, which rules may close over. It is the JVP, which is
    quicker to trace, or the VJP if a rule has only that; None without custom rules.
    Arrays that rules close over count by value in NumPy, and by identity in JAX. Rules
    should not close over arrays of NumPy that change in place: JAX keeps what it
    converts.

    A program equals only itself if it has no derivative, or its rules close over
    tracers of an outer function or see symbolic zeros: one derivative shows only some.
    """
    custom = list(filter(_is_custom, equations(jaxpr)))
    if not custom:
        return None
    itself = object()
    if any(equation.params.get("symbolic_zeros") for equation in custom):
        return itself

    reverse = "custom_vjp_call" in [equation.primitive.name for equation in custom]
    avals = [var.aval for var in jaxpr.invars]
    inexact = [
        aval if jnp.issubdtype(aval.dtype, jnp.inexact) else None for aval in avals
    ]
    moving = [None] * num_consts + inexact[num_consts:]
    step = jaxpr_as_fun(ClosedJaxpr(jaxpr, []))

    def differentiate(
        inputs: list[Any], moving: list[Any], directions: list[Any]
    ) -> Any:
        def run(moving: list[Any]) -> Any:
            return step(*_replace(inputs, moving))

        if reverse:
            return jax.vjp(run, moving)[1](directions)
        return jax.jvp(run, (moving,), (directions,))

    directions = [var.aval for var in jaxpr.outvars] if reverse else moving
    try:
        derivative = jax.make_jaxpr(differentiate)(avals, moving, directions)
    except NO_DERIVATIVE:
        return itself
    if is_traced(derivative.consts):
        return itself
    values = tuple(_array_key(const, kept) for const in derivative.consts)
    return _fingerprint(derivative.jaxpr, kept), values


def _array_key(value: Any, kept: list[Any]) -> Any:
    """Returns a hashable for an array: contents in NumPy, else the identity.

    NumPy's arrays may be changed in place. Other values are added to ``kept``.
    """
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tobytes()
    kept.append(value)
    return "id", id(value)


def _replace(values: list[Any], by: list[Any]) -> list[Any]:
    """Returns ``values`` with those entries of ``by`` that are not None."""
    pairs = zip(values, by, strict=True)
    return [old if new is None else new for old, new in pairs]


def _is_complex(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.complexfloating)


def _is_dynamic(leaf: Any) -> bool:
    """True for arrays and numbers with a fraction; flags, sizes, names and functions
    are constants of a step."""
    return isinstance(leaf, float | complex) or (
        hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    )
