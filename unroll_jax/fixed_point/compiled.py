"""Calls that are compiled once for all functions that do the same."""

import functools
import inspect
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
    jaxpr_as_fun,
)

from unroll_jax.fixed_point.program import Program, close_over_nothing, fingerprint

__all__ = ["call_compiled", "sees_constants"]

# Functions of these packages read nothing that changes, but for their closures.
PURE_PACKAGES = ("unroll_jax", "jax")
CONSTANTS = (
    int,
    float,
    complex,
    str,
    type,
    type(None),
    np.dtype,
    np.generic,
    jax.Array,
    Program,
)


def call_compiled(function: Any, static: tuple[Any, ...], *operands: Any) -> Any:
    """Returns ``function(*static, *operands)``, compiled once for equal ``static``.

    Functions among ``static`` count by identity if they see only constants. One of a
    user may read what changes, such as an array of a module. With such a function the
    call is traced each time, compiled once for each program, and arrays that it closes
    over are operands.

    Args:
      function: compiled by `jax.jit`, with ``static`` as static arguments.
      static: hashable values.
      *operands: pytrees of arrays.
    """
    if all(map(sees_constants, static)):
        return function(*static, *operands)
    leaves, structure = jax.tree.flatten(operands)
    uncompiled = function.__wrapped__

    def call(*leaves: Any) -> Any:
        return uncompiled(*static, *jax.tree.unflatten(structure, leaves))

    closed, shapes = jax.make_jaxpr(call, return_shape=True)(*leaves)
    values = _run(_Traced(closed), closed.consts, leaves)
    return jax.tree.unflatten(jax.tree.structure(shapes), values)


def sees_constants(value: Any) -> bool:
    """True if a value, or what a function can see, cannot change between two calls."""
    if isinstance(value, CONSTANTS):
        return True
    if isinstance(value, tuple):
        return all(map(sees_constants, value))
    if isinstance(value, functools.partial):
        keywords = tuple(value.keywords.values())
        return sees_constants((value.func, value.args, keywords))
    if not callable(value):
        return False
    innermost = inspect.unwrap(value)
    package = (getattr(innermost, "__module__", None) or "").partition(".")[0]
    if package not in PURE_PACKAGES:
        return False
    if package == "jax" or not isinstance(innermost, FunctionType):
        return package == "jax"
    cells = innermost.__closure__ or ()
    return all(sees_constants(cell.cell_contents) for cell in cells)


class _Traced:
    """A traced function, hashable by its computation."""

    def __init__(self, closed: ClosedJaxpr) -> None:
        self.jaxpr = close_over_nothing(closed)
        self.kept: list[Any] = []  # alive while their identity is part of the key
        self.key = fingerprint(self.jaxpr, self.kept)
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Traced) and self.key == other.key


@functools.partial(jax.jit, static_argnums=0)
def _run(traced: _Traced, consts: list[Any], leaves: list[Any]) -> list[Any]:
    return jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, []))(*consts, *leaves)
