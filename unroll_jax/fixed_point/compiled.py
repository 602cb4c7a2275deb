"""Calls that are compiled once for all functions that do the same."""

import functools
import inspect
from numbers import Number
from types import FunctionType
from typing import Any

import jax
import numpy as np

from unroll_jax.fixed_point.computation import Computation
from unroll_jax.fixed_point.program import Program

__all__ = ["call_compiled", "sees_constants"]

CONSTANTS = (
    Number,
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
    call = functools.partial(function.__wrapped__, *static)
    closed, shapes = jax.make_jaxpr(call, return_shape=True)(*operands)
    computation = Computation(closed, differentiable=False)
    values = _run(computation, *closed.consts, *jax.tree.leaves(operands))
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
    # Functions here and in JAX read nothing that changes, but for their closures.
    package = (getattr(innermost, "__module__", None) or "").partition(".")[0]
    if package != "unroll_jax" or not isinstance(innermost, FunctionType):
        return package == "jax"
    cells = innermost.__closure__ or ()
    return all(sees_constants(cell.cell_contents) for cell in cells)


@functools.partial(jax.jit, static_argnums=0)
def _run(computation: Computation, *inputs: Any) -> list[Any]:
    return computation(*inputs)
