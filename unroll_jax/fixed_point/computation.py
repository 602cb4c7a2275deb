"""Traced functions that are equal if they do the same."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
    Literal,
    jaxpr_as_fun,
)

from unroll_jax.fixed_point.reports import is_traced
from unroll_jax.step_checks import equations

__all__ = ["NO_DERIVATIVE", "Computation", "replace_entries"]

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
            return step(*replace_entries(inputs, moving))

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


def replace_entries(values: list[Any], by: list[Any]) -> list[Any]:
    """Returns ``values`` with those entries of ``by`` that are not None."""
    pairs = zip(values, by, strict=True)
    return [old if new is None else new for old, new in pairs]
