"""The one type everything is built from: an energy and the step that lowers it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

__all__ = [
    "Anchor",
    "Descent",
    "Entry",
    "Factored",
    "Params",
    "as_anchor",
    "blank_absent",
    "broadcasts",
    "check_array",
    "check_tokens",
    "compute_dtype",
    "look_up",
    "powers_of_two",
    "square_range",
]

Params = Any  # a pytree of arrays


class Anchor(NamedTuple):
    """An input x that also says which tokens are there, for sequences padded to a common length.

    A token that is absent has no neighbours and no energy, and no step moves it.

    Attributes:
      value: the anchor B, broadcastable to y, or None.
      present: boolean (*batch, n), or broadcastable to it; None if every token is there.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import AttentionParams, attention
      >>> y, real = jnp.array([[0.0], [4.0], [9.0]]), jnp.array([True, True, False])  # the last one is padding
      >>> y = jax.jit(attention().step)(AttentionParams(None), y, Anchor(present=real))
      >>> [round(value, 3) for value in y.ravel().tolist()]  # each of the two moves to its only neighbour
      [4.0, 0.0, 9.0]
    """

    value: Float[Array, "..."] | None = None
    present: Bool[Array, "..."] | None = None


class _Fields(NamedTuple):
    init: Callable[[jax.Array], Params]
    energy: Callable[[Params, Any, Any], Float[Array, "*batch"]]
    step: Callable[[Params, Any, Any], Any]
    step_and_energy: Callable[[Params, Any, Any], tuple[Any, Float[Array, "*batch"]]] | None = None
    factored: Callable[[Params, Any], Any] | None = None
    symmetric: bool = False
    check: Callable[[Params, Any], None] | None = None


# What is derived from a field, and its value where that field is replaced and it is not.
DERIVED: dict[str, dict[str, Any]] = {
    "energy": {"step_and_energy": None},
    "step": {"step_and_energy": None, "factored": None, "symmetric": False, "check": None},
}


class Descent(_Fields):
    """An energy and a step that lowers it, as pure functions of (params, y, x).

    ``descent._replace(step=mine)`` drops what was derived from the old step, unless it is replaced too.

    Attributes:
      init: ``key -> params``, a pytree of arrays.
      energy: ``(params, y, x) -> (*batch,)``, one number per example; ``y`` is ``(*batch, n, d)``, ``x`` the input of
        the system (its meaning is the factory's), or None; where it is an anchor, `Anchor` masks padded tokens.
      step: ``(params, y, x) -> y'``, same shape and dtype as ``y``.
      step_and_energy: ``(params, y, x) -> (y', energy at y)``, both at once where that is cheaper than one after the
        other; or None. It must agree with the two.
      factored: ``(params, x) -> Factored``, the same fixed points in a form that `equilibrium` can use; None if there
        is none.
      symmetric: whether the step is the gradient of a convex potential, so that its Jacobian is symmetric positive
        semidefinite; `equilibrium` then chooses solvers that use it.
      check: ``(params, y) -> None``, a ValueError where parameters whose values are known make steps that need have no
        fixed point; None if there is nothing to check. `equilibrium` asks it first.

    Example:
      >>> import jax.numpy as jnp
      >>> layer = Descent(  # half a gradient step on |y|^2 / 2
      ...     init=lambda key: None,
      ...     energy=lambda params, y, x: 0.5 * jnp.sum(y**2, (-2, -1)),
      ...     step=lambda params, y, x: 0.5 * y,
      ... )
      >>> y = jnp.array([[2.0]])
      >>> float(layer.energy(None, y, None)), float(layer.energy(None, layer.step(None, y, None), None))
      (2.0, 0.5)
    """

    __slots__ = ()

    def _replace(self, **changes: Any) -> "Descent":  # pyright: ignore[reportIncompatibleMethodOverride]
        derived = {name: value for field in changes for name, value in DERIVED.get(field, {}).items()}
        return super()._replace(**{**derived, **changes})

    __replace__ = _replace


class Factored(NamedTuple):
    """A layer z' = a f(z) + (1 - a) z, f(z) = W^T sigma(W z + c).

    The Jacobian W^T D W of f is symmetric, and lives in the smaller of two spaces.

    Attributes:
      matrix: W (h, m).
      offset: c (*batch, h).
      activation: sigma, elementwise, monotone and 1-Lipschitz.
      share: a in (0, 1]; the fixed points are those of f whatever it is.
    """

    matrix: Float[Array, "h m"]
    offset: Float[Array, "*batch h"]
    activation: Callable[[Array], Array]
    share: float = 1.0


class Entry(NamedTuple):
    """A row of `DESCENTS`: how to make the system, and where its step must lower its energy.

    Attributes:
      factory: the public factory of the system.
      example: ``(key, batch) -> (descent, y, x)`` with ``y`` of shape ``(*batch, *event)``. With ``descent.init(key)``
        and y and x multiplied by any scale, the energy of ``y`` is finite wherever the condition holds.
      condition: ``(params, y, x) -> (*batch,)``, the condition that the factory's docstring states for descent, as
        booleans; None if the step of the example always descends.
      event_ndim: how many axes of y one example has: 2 for tokens, 1 for a vector, 3 for an image.

    Example:
      >>> import jax
      >>> from unroll_jax import DESCENTS
      >>> entry = DESCENTS["opteq"]
      >>> entry.factory.__name__, entry.event_ndim, entry.example(jax.random.key(0), (5,))[1].ndim
      ('opteq', 1, 2)
    """

    factory: Callable[..., Descent]
    example: Callable[[jax.Array, tuple[int, ...]], tuple[Descent, Array, Array | None]]
    condition: Callable[[Params, Any, Any], Bool[Array, "*batch"]] | None = None
    event_ndim: int = 2


def as_anchor(x: Any) -> Anchor:
    """``x`` as an `Anchor`: itself, or an anchor of tokens that are all there."""
    return x if isinstance(x, Anchor) else Anchor(x)


def blank_absent(tokens: Any, present: Any) -> Any:
    """``tokens`` (..., n, d) with 0 for the absent ones, so that what padding holds, NaN even, reaches nothing."""
    return tokens if tokens is None or present is None else jnp.where(present[..., None], tokens, 0.0)


def check_tokens(y: Any, x: Any = None, *, dim: int | None = None) -> None:
    """Checks that ``y`` holds floating tokens (*batch, n, d) and that the anchor ``x`` fits it.

    Values that are known (not traced) must be finite, but for tokens that an `Anchor` says are absent.

    Raises:
      TypeError: if ``y`` or ``x`` is no array of a floating dtype, or ``x.present`` not of booleans.
      ValueError: if the ranks or widths do not fit, there is no token, or a value that is known is not finite.
    """
    x, present = as_anchor(x)
    if y is None:
        raise TypeError("y must be an array, got None")
    for name, value in (("y", y), ("x", x), ("x.present", present)):
        check_array(name, value)
    for name, value in (("y", y), ("x", x)):
        if value is not None and not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(f"{name} must have a floating dtype, got {jnp.result_type(value)}; cast it first")
    if present is not None and jnp.result_type(present) != jnp.bool_:
        raise TypeError(f"x.present must be boolean, got {jnp.result_type(present)}")
    shape = jnp.shape(y)
    if len(shape) < 2:
        raise ValueError(f"y must be (*batch, n, d) with at least two axes, got shape {shape}")
    if 0 in shape[-2:]:
        raise ValueError(f"y must hold at least one token of at least one number, got shape {shape}")
    if dim is not None and shape[-1] != dim:
        raise ValueError(f"y must have tokens of width dim={dim}, got shape {shape}")
    if x is not None and not broadcasts(jnp.shape(x), shape):
        raise ValueError(f"x must broadcast to y's shape {shape}, got shape {jnp.shape(x)}")
    if present is not None and not broadcasts(jnp.shape(present), shape[:-1]):
        raise ValueError(f"x.present must broadcast to y's tokens {shape[:-1]}, got shape {jnp.shape(present)}")
    for name, value in (("y", y), ("x", x)):
        _check_finite(name, value, present)


def check_array(name: str, value: Any) -> None:
    """Checks that ``value`` is an array, a number, or None.

    Raises:
      TypeError: if it is not; JAX takes no lists.
    """
    is_array = getattr(getattr(value, "dtype", None), "kind", "O") not in "OSU"
    if value is not None and not is_array and not isinstance(value, int | float | complex):
        raise TypeError(f"{name} must be an array, got {type(value).__name__}; jnp.asarray makes one")


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Returns whether an array of ``shape`` broadcasts to ``target``."""
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    return len(padded) == len(target) and all(a in (1, b) for a, b in zip(padded, target, strict=True))


def look_up(argument: str, value: Any, table: Mapping[str, Any], kind: type, *kinds: type) -> Any:
    """``value`` itself where it is of one of the kinds, else the entry of ``table`` that it names.

    Raises:
      ValueError: if the name is not in the table.
      TypeError: if it is neither a name nor of one of the kinds.
    """
    if isinstance(value, (kind, *kinds)):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    wanted = f"{argument} must be one of {sorted(table)} or {article} {kind.__name__}"
    if not isinstance(value, str):
        raise TypeError(f"{wanted}, got {type(value).__name__}")
    if value not in table:
        raise ValueError(f"{wanted}, got {value!r}")
    return table[value]


def powers_of_two(sizes: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Powers of two that bring ``sizes`` near 1, and those that take them back; 1 for 0, constants for autodiff.

    Products with them are exact, and neither is subnormal, which compiled code takes for 0.
    """
    lowest = int(jnp.finfo(sizes.dtype).minexp)
    _, exponent = jnp.frexp(jax.lax.stop_gradient(sizes))
    exponent = jnp.clip(exponent, lowest, -lowest)
    one = jnp.ones((), sizes.dtype)
    return jnp.ldexp(one, -exponent), jnp.ldexp(one, exponent)


def square_range(largest: Float[Array, "..."], count: int) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Powers of two that make numbers small where sums of ``count`` of their squares overflow, and back; else 1.

    Sums of squares and products, times the second power twice, then overflow to the infinity of their own sign.
    """
    limits = jnp.finfo(largest.dtype)
    room = 0.25 * float(limits.max) ** 0.5 / count**0.5
    most = 2.0 ** (int(limits.maxexp) // 2 - 2)  # compilers multiply the two powers first: their product is finite
    return powers_of_two(jnp.where(largest > room, jnp.minimum(largest, most), 1.0))


def compute_dtype(*arrays: Any) -> jnp.dtype:
    """The dtype energies and reductions are computed in: float32 at least, float64 if an input is."""
    return jnp.promote_types(jnp.result_type(*(a for a in arrays if a is not None)), jnp.float32)


def _check_finite(name: str, value: Any, present: Any) -> None:
    if value is None or any(isinstance(known, Tracer) for known in (value, present)):
        return
    if not getattr(value, "is_fully_addressable", True):  # parts of it lie on other hosts
        return
    value = np.asarray(value)
    finite = np.isfinite(value)
    if not finite.all() and present is not None:
        finite, there = np.broadcast_arrays(finite, np.asarray(present)[..., None])
        value, finite = np.broadcast_to(value, finite.shape), finite | ~there
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{name} must be finite, but {name}{list(place)} is {value[place]}")
