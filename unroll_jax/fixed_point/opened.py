"""Steps as users have them: parameters that are not arrays alone, complex states, auxiliary results."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from unroll_jax.descent import Descent, Params
from unroll_jax.steps import check_step

__all__ = ["Opened", "check_order", "check_result", "keep_static", "open_step"]

STATES, PARAMETERS = frozenset({"z", "y", "x0", "z0", "state"}), frozenset({"params", "theta", "weights"})
ORDER = "steps here are step(params, z, x), where jaxopt's are T(z, x, params)"


class Opened(NamedTuple):
    """A problem on real arrays alone, and the way back to the user's.

    Attributes:
      descent: the `Descent` or step.
      params: of the step.
      y0: the initial state.
      x: the input.
      close: ``(y, info) -> (y, info)`` or ``(y, info, aux)``, as the user's state is.
    """

    descent: Any
    params: Params
    y0: Any
    x: Any
    close: Callable[[Any, Any], Any]


def open_step(descent: Any, params: Params, y0: Any, x: Any, has_aux: bool) -> Opened:
    """Returns the problem on real arrays: other leaves of params and x are constants, complex states pairs.

    Args:
      descent: a `Descent`, left alone, or a step.
      params: a pytree; leaves that are neither arrays nor numbers with a fraction, such as functions of an Equinox
        module, are constants of the step.
      y0: the initial state.
      x: the input, as params.
      has_aux: whether the step returns ``(z', aux)``.

    Raises:
      TypeError: if the step's arguments are not (params, z, x), as far as their number and names tell.
      ValueError: if has_aux is asked of a `Descent`.
    """
    if isinstance(descent, Descent):
        if has_aux:
            raise ValueError("has_aux must be False for a Descent, got True; pass a step (params, y, x) -> (y', aux)")
        return Opened(descent, params, y0, x, lambda y, info: (y, info))
    if not callable(descent):
        return Opened(descent, params, y0, x, lambda y, info: (y, info))  # `begin_step` raises the error
    check_order(descent)
    step, (arrays, inputs) = keep_static(descent, params, x)
    real, imaginary = _parts(y0)

    def advance(arrays: Any, parts: Any, inputs: Any) -> Any:
        after = step(arrays, _joined(*parts), inputs)
        return _parts(_first(after) if has_aux else after)

    def alone(arrays: Any, y: Any, inputs: Any) -> Any:
        return _first(step(arrays, y, inputs)) if has_aux else step(arrays, y, inputs)

    packed = imaginary is not None

    def close(y: Any, info: Any) -> Any:
        y = _joined(*y) if packed else y
        return (y, info, step(arrays, y, inputs)[1]) if has_aux else (y, info)

    return Opened(advance if packed else alone, arrays, (real, imaginary) if packed else y0, inputs, close)


def check_order(step: Callable[..., Any]) -> None:
    """Checks that a step can take (params, z, x), and is not one of jaxopt's by the names of its arguments.

    Raises:
      TypeError: if it is.
    """
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # callables without one, such as some of compiled modules
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]
    if names and names[0] in STATES and PARAMETERS.intersection(names[1:]):
        raise TypeError(f"the step must take (params, z, x), got one of ({', '.join(names)}); {ORDER}")
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise TypeError(f"the step must take (params, z, x), got one of ({', '.join(names)}); {ORDER}") from None


def check_result(params: Any, y: Any, after: Any) -> None:
    """Checks that a step kept the state, with a hint where it returned something like its first argument.

    Raises:
      ValueError: as `check_step`.
    """
    try:
        check_step(y, after)
    except ValueError as error:
        swapped = jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, params)
        raise ValueError(f"{error}" + f"; its value is like params: {ORDER}" * swapped) from None


def keep_static(step: Callable[..., Any], params: Params, x: Any) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """The step on arrays alone, ``(arrays, y, inputs) -> y'``, and those arrays; other leaves are its constants."""
    leaves, structure = jax.tree.flatten((params, x))
    dynamic = [_is_dynamic(leaf) for leaf in leaves]
    if all(dynamic):
        return step, (params, x)
    cut = structure.children()[0].num_leaves

    def alone(arrays: list[Any], y: Any, inputs: list[Any]) -> Any:
        moving = iter([*arrays, *inputs])
        merged = [next(moving) if is_dynamic else leaf for is_dynamic, leaf in zip(dynamic, leaves, strict=True)]
        whole_params, whole_x = jax.tree.unflatten(structure, merged)
        return step(whole_params, y, whole_x)

    chosen = [[leaf for leaf, keep in zip(leaves[part], dynamic[part], strict=True) if keep] for part in _halves(cut)]
    return alone, (chosen[0], chosen[1])


def _halves(cut: int) -> tuple[slice, slice]:
    return slice(None, cut), slice(cut, None)


def _is_dynamic(leaf: Any) -> bool:
    """True for arrays and numbers with a fraction; flags, sizes, names and functions are constants of a step."""
    return (hasattr(leaf, "dtype") and hasattr(leaf, "shape")) or isinstance(leaf, float | complex)


def _first(after: Any) -> Any:
    if not isinstance(after, tuple) or len(after) != 2:
        raise ValueError(f"the step must return (z', aux) where has_aux=True, got {type(after).__name__}")
    return after[0]


def _is_complex(leaf: Any) -> bool:
    return isinstance(leaf, complex) or jnp.issubdtype(getattr(leaf, "dtype", jnp.float32), jnp.complexfloating)


def _parts(y: Any) -> tuple[Any, Any]:
    """The state with real parts in place of complex leaves, and the imaginary ones (None at others; None if all)."""
    leaves, structure = jax.tree.flatten(y)
    if not any(map(_is_complex, leaves)):
        return y, None
    parts = [(jnp.real(leaf), jnp.imag(leaf)) if _is_complex(leaf) else (leaf, None) for leaf in leaves]
    return jax.tree.unflatten(structure, [real for real, _ in parts]), [imaginary for _, imaginary in parts]


def _joined(real: Any, imaginary: list[Any] | None) -> Any:
    leaves, structure = jax.tree.flatten(real)
    if imaginary is None:
        return real
    pairs = zip(leaves, imaginary, strict=True)
    return jax.tree.unflatten(structure, [a if b is None else jax.lax.complex(a, b) for a, b in pairs])
