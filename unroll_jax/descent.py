"""Types of the library: a descent, its anchor and its entry in the table of systems."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float

__all__ = ["Anchor", "Descent", "Entry", "Factored", "Params", "Unchecked"]

Params = Any  # a pytree of arrays


class Anchor(NamedTuple):
    """An input x with a mask of the tokens that are present.

    It serves sequences padded to a common length. An absent token has no neighbours
    and no energy, and no step moves it.

    Attributes:
      value: the anchor B, broadcastable to y, or None.
      present: boolean (*batch, n), or broadcastable to it. None if every token is
        present. Of layers whose x holds keys or pairs it marks those, and no tokens.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from unroll_jax.energies import AttentionParams, attention
      >>> y = jnp.array([[0.0], [4.0], [9.0]])
      >>> x = Anchor(present=jnp.array([True, True, False]))  # the last is padding
      >>> y = jax.jit(attention().step)(AttentionParams(None), y, x)
      >>> y.ravel().round(3).tolist()  # each of the two moves to its only neighbour
      [4.0, 0.0, 9.0]
    """

    value: Float[Array, "..."] | None = None
    present: Bool[Array, "..."] | None = None


class Unchecked(NamedTuple):
    """Functions of ``(params, tokens)`` without checks or casts, see `Descent`.

    Layers made of others call these, and check their arguments once. The values of a
    step at absent tokens do not count.

    Attributes:
      energy: ``-> (*batch,)``, which leaves absent tokens out of its sum.
      step: ``-> y'``, in any floating dtype.
      step_and_energy: both at once, or None.
    """

    energy: Callable[[Params, Any], Float[Array, "*batch"]]
    step: Callable[[Params, Any], Float[Array, "*batch n d"]]
    step_and_energy: Callable[[Params, Any], tuple[Array, Array]] | None = None


class _Fields(NamedTuple):
    init: Callable[[jax.Array], Params]
    energy: Callable[[Params, Any, Any], Float[Array, "*batch"]]
    step: Callable[[Params, Any, Any], Any]
    step_and_energy: (
        Callable[[Params, Any, Any], tuple[Any, Float[Array, "*batch"]]] | None
    ) = None
    factored: Callable[[Params, Any], Any] | None = None
    symmetric: bool = False
    check: Callable[[Params, Any], None] | None = None
    smooth: Callable[[Params, Any, Any], Float[Array, "*batch"]] | None = None
    unchecked: Unchecked | None = None


# Fields derived from a field, and their values where only that field is replaced: they
# would describe the old energy or step.
DERIVED: dict[str, dict[str, Any]] = {
    "energy": {"step_and_energy": None, "smooth": None, "unchecked": None},
    "step": {
        "step_and_energy": None,
        "factored": None,
        "symmetric": False,
        "check": None,
        "unchecked": None,
    },
}


class Descent(_Fields):
    """An energy and a step that lowers it, as pure functions of (params, y, x).

    Wrap a layer by ``descent._replace(step=mine)``: it keeps the energy and drops the
    fields derived from the old step, unless they are replaced too. A wrapped step gets
    y and x as they were passed. It must keep shape and dtype of y, and leave tokens
    absent from an `Anchor` as they are. `certify` judges it by what it does, and relies
    on no field but ``energy`` and ``smooth``.

    Attributes:
      init: ``key -> params``, a pytree of arrays.
      energy: ``(params, y, x) -> (*batch,)``, one number per example. ``y`` is
        ``(*batch, n, d)``, ``x`` the input of the system (its meaning is the
        factory's), or None. Where it is an anchor, `Anchor` masks padded tokens.
      step: ``(params, y, x) -> y'``, same shape and dtype as ``y``.
      step_and_energy: ``(params, y, x) -> (y', energy at y)``, both at once where that
        is cheaper, equal to the two, or None.
      factored: ``(params, x) -> Factored``, the same fixed points in a form that
        `equilibrium` can use, or None.
      symmetric: whether the step is the gradient of a convex potential: `equilibrium`
        uses its symmetric Jacobian.
      check: ``(params, y) -> None``. Raises ValueError if the parameters, when
        concrete, need not have a fixed point. None if there is nothing to check. Called
        once at the start of `equilibrium`.
      smooth: ``(params, y, x) -> (*batch,)``, the energy's part with a gradient
        everywhere, for `certify`. None is all.
      unchecked: the unchecked functions of tokens of our layers, from which composite
        layers are made, or None.

    Example:
      >>> import jax.numpy as jnp
      >>> layer = Descent(  # half a gradient step on |y|^2 / 2
      ...     init=lambda key: None,
      ...     energy=lambda params, y, x: 0.5 * jnp.sum(y**2, (-2, -1)),
      ...     step=lambda params, y, x: 0.5 * y,
      ... )
      >>> y = jnp.array([[2.0]])
      >>> after = layer.step(None, y, None)
      >>> float(layer.energy(None, y, None)), float(layer.energy(None, after, None))
      (2.0, 0.5)
    """

    __slots__ = ()

    def _replace(self, **changes: Any) -> "Descent":  # pyright: ignore[reportIncompatibleMethodOverride]
        derived: dict[str, Any] = {}
        for field in changes:
            derived.update(DERIVED.get(field, {}))
        return super()._replace(**{**derived, **changes})

    __replace__ = _replace


class Factored(NamedTuple):
    """A layer z' = a f(z) + (1 - a) z, f(z) = W^T sigma(W z + c).

    The Jacobian W^T D W of f is symmetric, and lives in the smaller of two spaces.

    Attributes:
      matrix, offset: W (h, m) and c (*batch, h).
      activation: sigma, elementwise, monotone and 1-Lipschitz.
      share: a in (0, 1]. Every a has the fixed points of f.
    """

    matrix: Float[Array, "h m"]
    offset: Float[Array, "*batch h"]
    activation: Callable[[Array], Array]
    share: float = 1.0


class Entry(NamedTuple):
    """A row of `DESCENTS`: a system, an example of it, and its condition for descent.

    Attributes:
      factory: the public factory of the system.
      example: ``(key, batch) -> (descent, y, x)`` with ``y`` of shape
        ``(*batch, *event)``. With ``descent.init(key)`` and y and x multiplied by any
        scale, the energy of ``y`` is finite where the condition holds.
      condition: ``(params, y, x) -> (*batch,)``, the factory's condition for descent,
        as booleans. None: always.
      event_ndim: how many axes of y one example has: 2 for tokens, 1 for a vector, 3
        for an image.

    Example:
      >>> import jax
      >>> from unroll_jax import DESCENTS
      >>> entry = DESCENTS["opteq"]
      >>> layer, y, x = entry.example(jax.random.key(0), (5,))
      >>> entry.factory.__name__, entry.event_ndim, y.ndim
      ('opteq', 1, 2)
    """

    factory: Callable[..., Descent]
    example: Callable[[jax.Array, tuple[int, ...]], tuple[Descent, Array, Array | None]]
    condition: Callable[[Params, Any, Any], Bool[Array, "*batch"]] | None = None
    event_ndim: int = 2
