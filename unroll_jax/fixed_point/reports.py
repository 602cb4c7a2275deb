"""Reports of failed solves to the user: at once where values are known, from compiled code by one host callback."""

import contextlib
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array

from unroll_jax.fixed_point.problem import STALLED, SolveInfo
from unroll_jax.steps import vary_like

__all__ = ["Failure", "Site", "call_site", "watched"]

# Files between the user's line and a report: this library, JAX, and what Python's decorators wrap functions in.
_INSIDE = (str(Path(__file__).parents[1]), str(Path(str(jax.__file__)).parent), contextlib.__file__, functools.__file__)


class Failure(NamedTuple):
    """The rows that failed, and how the worst of them ended."""

    failed: np.ndarray
    worst: int
    residual: float
    steps: int
    status: int


class _Text(str):
    """A message that the filters of `warnings` take for another of the same kind, whatever figures follow a colon."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return self.split(":")[0]

    def __eq__(self, other: object) -> bool:
        return self.kind == other.kind if isinstance(other, _Text) else str.__eq__(self, other)

    def __hash__(self) -> int:
        return hash(self.kind)


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """The line of the user that a warning is attributed to; by default Python shows one warning a line.

    Attributes:
      filename: the file.
      line: its number in the file.
      names: globals of the module, where `warnings` keeps what it has shown of it.
    """

    filename: str
    line: int
    names: dict[str, Any]

    def warn(self, message: str, category: type[Warning]) -> None:
        """Gives a warning there."""
        registry = self.names.setdefault("__warningregistry__", {})
        warnings.warn_explicit(_Text(message), category, self.filename, self.line, registry=registry)


def call_site() -> Site:
    """The innermost line on the stack that is not of this library, of JAX or of Python's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def watched(tree: Any, info: SolveInfo, report: Callable[[Failure], None]) -> Any:
    """``tree``; calls ``report`` if a row failed, from compiled code by a callback that ``tree`` waits for.

    The callback has no effect for JAX, which would dispatch programs with effects in Python, at .1 ms a call or more:
    so the arrays that it must not be lost with are passed through. Under vmap the examples of all calls are reported
    together, once. Programs that `jax.export` makes have none, as they cannot be stored with one.
    """
    residual, steps, status = jax.lax.stop_gradient(tuple(info))
    if not any(isinstance(leaf, Tracer) for leaf in (residual, steps, status)):
        _call(report, residual, steps, status)
        return tree
    reported = _watch.bind(jnp.any(status > STALLED), residual, steps, status, report=report)  # False

    def wait(leaf: Array) -> Array:
        return jnp.where(reported, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.inexact) else -1, leaf)

    return jax.tree.map(wait, tree)


def _call(report: Callable[[Failure], None], *arrays: Any) -> np.ndarray:
    residual, steps, status = (np.asarray(array) for array in arrays)
    failed = status > STALLED
    if failed.any():
        worst = int(np.argmax(np.where(failed, np.nan_to_num(residual, nan=np.inf), -1.0)))
        report(Failure(failed, worst, float(residual[worst]), int(steps[worst]), int(status[worst])))
    return np.zeros((), bool)


def _evaluate(failed: Array, *arrays: Array, report: Callable[[Failure], None]) -> Array:
    return jnp.asarray(_call(report, *arrays))


def _lower(ctx: Any, *operands: Any, report: Callable[[Failure], None]) -> Any:
    def none(failed: Array, *arrays: Array) -> Array:
        return failed & False

    # Of several devices, as XLA asks for one sharding in both branches, which a callback with a result does not have.
    devices = ctx.module_context.axis_context
    several = getattr(devices, "num_devices", None) != 1

    def tell(*arrays: Array) -> None:
        _call(report, *arrays)

    def call(failed: Array, *arrays: Array) -> Array:
        if several:
            jax.debug.callback(tell, *arrays)
            return failed & False
        done = jax.pure_callback(functools.partial(_call, report), jax.ShapeDtypeStruct((), bool), *arrays)
        return vary_like(done, failed)

    def guarded(failed: Array, *arrays: Array) -> Array:
        return jax.lax.cond(failed, call, none, failed, *arrays)

    exported = ctx.module_context.lowering_parameters.for_export
    return mlir.lower_fun(none if exported else guarded, multiple_results=False)(ctx, *operands)


def _batch(operands: Any, axes: Any, *, report: Callable[[Failure], None]) -> tuple[Array, None]:
    size = next(array.shape[axis] for array, axis in zip(operands, axes, strict=True) if axis is not None)
    failed, *arrays = (
        jnp.broadcast_to(array, (size, *array.shape)) if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(operands, axes, strict=True)
    )
    return _watch.bind(jnp.any(failed), *(array.reshape(-1) for array in arrays), report=report), None


_watch = Primitive("watch_of_equilibrium")
_watch.def_abstract_eval(lambda failed, *arrays, report: failed)
_watch.def_impl(_evaluate)
mlir.register_lowering(_watch, _lower, cacheable=False)
batching.primitive_batchers[_watch] = _batch
