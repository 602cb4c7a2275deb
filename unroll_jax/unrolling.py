"""Depth by repetition: a step unrolled over tied or stacked layers with `lax.scan`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unroll_jax.arguments import at_least, check, checked, require
from unroll_jax.descent import Descent, Params
from unroll_jax.perturbations import Perturbation
from unroll_jax.placement import settle
from unroll_jax.step_checks import check_state, check_step, equations, first_layer
from unroll_jax.summaries import energy_lines, plot_layers, summary

__all__ = ["UNROLLED", "Trace", "unroll"]

# Layers are written out, without a loop, up to this number of layers and of operations
# in all of them. Compile time grows with the operations. Programs of more operations
# ran as fast in a loop.
UNROLLED = 16
MAX_OPERATIONS = 2_000

Record = Callable[[Params, Any, Any], Any]


class Trace(NamedTuple):
    """The default record of `unroll`.

    Attributes:
      energy: (num_layers + 1, *batch), the energy before the first layer and after each
        layer.

    Example:
      >>> import jax.numpy as jnp
      >>> from unroll_jax.energies import FeedForwardParams, feedforward
      >>> layer = feedforward(1, step_size=0.5)
      >>> params = FeedForwardParams(jnp.zeros((1, 1)))  # y^2 / 2
      >>> _, trace = unroll(layer, params, jnp.array([[4.0]]), num_layers=2)
      >>> trace.energy.tolist()
      [8.0, 2.0, 0.5]
    """

    energy: Float[Array, "layers_and_one *batch"]

    def __repr__(self) -> str:
        return summary(self, lambda: energy_lines(self.energy))

    def plot(self, axes: Any = None) -> Any:
        """Draws the median and the range of the energies by layer. Returns the axes."""
        return plot_layers(self.energy, label="energy", axes=axes)


@checked(num_layers=at_least(1))
def unroll(
    descent: Descent | Callable[[Params, Any, Any], Any],
    params: Params,
    y: Any,
    x: Any = None,
    *,
    num_layers: int,
    tied: bool = True,
    record: Record | str | None = "energy",
    remat: bool | Callable[..., Any] = False,
    unroll: int | None = None,
    perturb: Perturbation | None = None,
) -> tuple[Any, Any]:
    """Applies ``num_layers`` steps, recording at every layer.

    The layers run in one `lax.scan`. Beyond `UNROLLED` layers compile time does not
    grow with depth.

    Args:
      descent: a `Descent`, or a step ``(params, y, x) -> y'``. With a step ``record``
        must be a function or None.
      params: parameters of one layer if ``tied``. Else a pytree whose leaves have a
        leading axis ``num_layers``.
      y: the state before the first layer, a pytree of arrays.
      x: the input every layer sees, or None.
      num_layers: number of steps, at least 1.
      tied: True if all layers share ``params``.
      record: "energy" records `Trace`, by ``step_and_energy`` if the descent has it. A
        function ``(params, y, x) -> pytree`` records its values, stacked along a new
        leading axis of num_layers + 1. Entry l < num_layers is of the state before
        layer l + 1, with the parameters of that layer. The last entry is of the state
        after the last layer. None records nothing.
      remat: recomputes each layer in the backward pass, or a policy of
        `jax.checkpoint_policies` for the values stored.
      unroll: layers in one iteration of the scan. None puts up to `UNROLLED` layers in
        one, which takes some memory, and saves the copies that a scan makes for the
        backward pass. With more layers None is 1, also with ``remat``, for layers that
        iterate until they converge, as `multihead_attention`, and for layers of more
        than `MAX_OPERATIONS` operations together, as 12 of `lista`.
      perturb: ``(layer, before, after) -> after`` replaces the output of each layer
        1..num_layers, as `unroll_jax.perturbations.layer_noise` does. The next layer
        and the record see its result.

    Returns:
      ``(y, trace)``: the state after the last layer, and the record (None if ``record``
      is None).

    Raises:
      ValueError: if num_layers or unroll is not at least 1, unroll leaves no loop for
        remat, a stacked leaf has another leading axis, a bare step has
        ``record="energy"``, or the state's structure, shape or dtype changes.
      TypeError: if a leaf of y is not an array.

    Example:
      >>> import jax, unroll_jax
      >>> layer = unroll_jax.attention(form="softmax")
      >>> params = jax.jit(layer.init)(jax.random.key(0))
      >>> tokens = jax.random.normal(jax.random.key(1), (8, 5, 3))
      >>> y, trace = unroll(layer, params, tokens, num_layers=12)
      >>> trace.energy.shape
      (13, 8)
    """
    step = descent.step if isinstance(descent, Descent) else descent
    measure = _resolve_record(descent, record)
    advance = _step_and_record(descent, step, measure, record)
    check_state("y", y)
    y = jax.tree.map(jnp.asarray, y)
    first = first_layer(params, num_layers, tied=tied)
    y = settle(lambda y: step(first, y, x), y)
    traced, after = jax.make_jaxpr(step, return_shape=True)(first, y, x)
    check_step(y, after)
    if perturb is not None:
        check_step(y, jax.eval_shape(perturb, jnp.int32(1), y, y), what="perturb")

    def layer(state: Any, each: tuple[Params, Any]) -> tuple[Any, Any]:
        layer_params, number = each
        after, recorded = advance(params if tied else layer_params, state, x)
        if perturb is not None:
            after = perturb(number, state, after)
        if at_once > 1:
            # XLA would compute earlier layers again in the kernels of later ones. The
            # compile time would grow as the square of the number of layers.
            after = jax.lax.optimization_barrier(after)
        return after, recorded

    names = [equation.primitive.name for equation in equations(traced.jaxpr)]
    many = num_layers * len(names) > MAX_OPERATIONS
    loops = bool(remat) or "while" in names or many
    at_once = _layers_at_once(unroll, num_layers, remat=bool(remat), loops=loops)
    if remat:
        policy = None if isinstance(remat, bool) else remat
        layer = jax.checkpoint(layer, prevent_cse=False, policy=policy)
    stacked = None if tied else params
    numbers = None if perturb is None else jnp.arange(1, num_layers + 1)
    each = (stacked, numbers)
    y, trace = jax.lax.scan(layer, y, each, length=num_layers, unroll=at_once)
    if record is None:
        return y, None

    last_params = params if tied else jax.tree.map(lambda leaf: leaf[-1], params)
    last = measure(last_params, y, x)
    return y, jax.tree.map(_append, trace, last)


def _append(entries: Any, last: Any) -> Any:
    return jnp.concatenate([entries, jnp.asarray(last)[None]])


def _layers_at_once(
    unroll: int | None, num_layers: int, *, remat: bool, loops: bool
) -> int:
    """Returns the number of layers in one iteration of a scan, see `unroll`.

    ``remat`` needs a loop. Without one compilers reuse the forward values. A layer with
    ``loops`` of its own, or of many operations, takes long to compile, and to run,
    beside which the copies of a scan cost little.
    """
    if unroll is None:
        return 1 if loops or num_layers > UNROLLED else num_layers
    check("unroll", unroll, at_least(1))
    has_loop = not remat or unroll < num_layers or num_layers == 1
    wanted = f"be below num_layers={num_layers} with remat, which needs a loop"
    require(has_loop, "unroll", wanted, unroll)
    return min(unroll, num_layers)


def _resolve_record(descent: Any, record: Record | str | None) -> Record:
    if record is None:
        return lambda params, y, x: None
    if callable(record):
        return record
    wanted = 'be "energy", a function of (params, y, x), or None'
    require(record == "energy", "record", wanted, repr(record))
    if not isinstance(descent, Descent):
        raise ValueError(
            'record="energy" needs a Descent, got a step alone; pass a record function,'
            " or record=None"
        )
    return lambda params, y, x: Trace(energy=descent.energy(params, y, x))


def _step_and_record(
    descent: Any, step: Callable, measure: Record, record: Any
) -> Callable[..., tuple[Any, Any]]:
    shared = getattr(descent, "step_and_energy", None)
    if shared is None or record != "energy":
        return lambda params, y, x: (step(params, y, x), measure(params, y, x))

    def advance(params: Params, y: Any, x: Any) -> tuple[Any, Trace]:
        stepped, energy = shared(params, y, x)
        return stepped, Trace(energy)

    return advance
