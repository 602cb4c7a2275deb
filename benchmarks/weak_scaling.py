"""Scaling of the training of an 8-billion-parameter decoder from 8 devices to 512.

By formulas, and by the collectives of the traced program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from benchmarks.language_model import (
    LanguageModel,
    Read,
    cross_entropy,
    matmul_flops_a_token,
)
from benchmarks.programs import equations
from benchmarks.record import Record
from benchmarks.timing import table
from unroll_jax.constrained import (
    DualState,
    descent_constraints,
    dual_ascent,
    lagrangian,
)

__all__ = ["main"]

AXIS = "fsdp"
ALPHA, PRIMAL_RATE, DUAL_RATE = 0.05, 1e-4, 1e-2
DEVICES = (8, 16, 32, 64, 128, 256, 512)
# forward, again in the backward pass (remat), and two products backward for each
PASSES = 4


class DecoderSizes(NamedTuple):
    """Sizes of a decoder, as in `LanguageModel`."""

    vocabulary: int
    dim: int
    num_layers: int
    heads: int
    kv_heads: int
    hidden: int


class Setting(NamedTuple):
    """A training step on devices that hold shards of all arrays."""

    num_devices: int
    sizes: DecoderSizes
    sequences: int  # on each device
    tokens: int  # of a sequence
    chunk: int  # positions read at a time
    # one position in so many is read at every layer. None trains by plain risk.
    share: int | None
    dtype: str  # of the computation, and of weights and gradients on the way


class Accelerator(NamedTuple):
    """Published figures of one device."""

    name: str
    peak: float  # operations per second, bfloat16, dense
    near: int  # devices that the faster links join
    near_bandwidth: float  # bytes per second that a device sends over the faster links
    far_bandwidth: float  # the same where a ring joins several groups of ``near``


EIGHT_BILLION = DecoderSizes(128_256, 4096, 32, 32, 8, 14_336)  # Llama 3 8B
# Two sequences of 4,096 tokens a device are 4 million tokens a step on 512.
LARGE = Setting(
    8, EIGHT_BILLION, sequences=2, tokens=4096, chunk=512, share=32, dtype="bfloat16"
)
ACCELERATORS = (
    # 4,800 Gbit/s of links a chip, all in use
    Accelerator("TPU v5p", 459e12, max(DEVICES), 600e9, 600e9),
    # NVLink in a node of 8. Beyond it 8 rings at once, each over another of the node's
    # 8 InfiniBand cards of 400 Gbit/s
    Accelerator("H100 SXM", 989e12, 8, 450e9, 400e9),
)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints bytes sent per device and step, and the step times that follow."""
    del peers  # there are none
    numbers = (DEVICES[0], DEVICES[-1]) if quick else DEVICES
    print(
        f"decoder of {sum(num_params(LARGE.sizes)) / 1e9:.2f} billion parameters,"
        f" {LARGE.sequences} x {LARGE.tokens} tokens a device; constraints on every"
        f" layer, one position in {LARGE.share}; all is sharded over all devices"
    )
    figures = {"bytes_added": 0.0}
    rows = []
    for number in numbers:
        setting = LARGE._replace(num_devices=number)
        formula = sum(formula_bytes(setting).values())
        sent = sum(sent_bytes(setting).values())
        plain = sum(sent_bytes(setting._replace(share=None)).values())
        figures["bytes_added"] = max(figures["bytes_added"], sent - plain)
        figures |= {f"formula_{number}_bytes": formula, f"traced_{number}_bytes": sent}
        row = [number, formula / 1e9, sent / 1e9]
        for accelerator in ACCELERATORS:
            compute, network = step_seconds(setting, sent, accelerator)
            overlapped = compute / max(compute, network)
            apart = compute / (compute + network)
            name = f"{accelerator.name}_{number}"
            figures |= {f"{name}_overlapped": overlapped, f"{name}_apart": apart}
            row += [1e3 * compute, 1e3 * network, overlapped, apart]
        rows.append(row)
    print(f"constraints add {figures['bytes_added']:.0f} bytes per step and device")
    header = ["devices", "formula GB", "traced"]
    for accelerator in ACCELERATORS:
        columns = ("ms", "network", "within", "after")
        header += [f"{accelerator.name}: {column}" for column in columns]
    print(table(header, rows))
    print(
        "ms: at the published peak; network: at the published bandwidth, by ring"
        " algorithms, without latency\n"
        "within, after: share of the peak if the network runs behind the computing, or"
        " before and after it"
    )
    return Record(figures)


def num_params(sizes: DecoderSizes) -> tuple[int, int]:
    """Weights of the matrices, without the scales of norms.

    Returns:
      ``(of all layers, of the embedding and the readout)``.
    """
    narrow = sizes.dim * sizes.kv_heads // sizes.heads
    layer = 2 * sizes.dim * (sizes.dim + narrow) + 3 * sizes.dim * sizes.hidden
    return sizes.num_layers * layer, 2 * sizes.vocabulary * sizes.dim


def formula_bytes(setting: Setting) -> dict[str, float]:
    """Kind -> bytes of matrices that a device sends in a step, by ring algorithms.

    Layers are gathered twice, as they run forward twice, embedding and readout once.
    Every gradient is scattered once.
    """
    layers, ends = num_params(setting.sizes)
    # a device sends all shards but one
    others = (setting.num_devices - 1) / setting.num_devices
    size = others * jnp.dtype(setting.dtype).itemsize
    return {
        "all_gather": (2 * layers + ends) * size,
        "reduce_scatter": (layers + ends) * size,
    }


def step_seconds(
    setting: Setting, sent: float, accelerator: Accelerator
) -> tuple[float, float]:
    """Seconds of the matrix products of a step, and of the ``sent`` bytes.

    Products include those of recomputation.
    """
    tokens = setting.sequences * setting.tokens
    layers, readout = matmul_flops_a_token(_model(setting), setting.tokens)
    readouts = 1.0
    if setting.share is not None:
        readouts += (setting.sizes.num_layers + 1) / setting.share
    flops = PASSES * tokens * (layers + readout * readouts)

    near = setting.num_devices <= accelerator.near
    bandwidth = accelerator.near_bandwidth if near else accelerator.far_bandwidth
    return flops / accelerator.peak, sent / bandwidth


def sent_bytes(setting: Setting) -> dict[str, float]:
    """Kind -> bytes that a device sends in a step, from the traced program.

    By ring algorithms a result of R bytes on g devices sends R (g - 1) / g if gathered,
    R (g - 1) if scattered, and twice R (g - 1) / g if summed.
    """
    mesh = AbstractMesh((setting.num_devices,), (AXIS,), axis_types=(AxisType.Auto,))
    step, *arguments = training_step(setting, mesh)
    others = setting.num_devices - 1
    shared = others / setting.num_devices
    factors = {"all_gather": shared, "reduce_scatter": others, "psum": 2 * shared}
    sent: dict[str, float] = {}
    for equation, times in equations(step.trace(*arguments).jaxpr.jaxpr):
        kind = equation.primitive.name
        if kind in factors:
            results = [out.aval for out in equation.outvars]
            size = sum(result.size * result.dtype.itemsize for result in results)
            sent[kind] = sent.get(kind, 0.0) + factors[kind] * times * size
    return sent


def training_step(setting: Setting, mesh: Mesh | AbstractMesh) -> tuple[Any, Any, Any]:
    """The jitted step ``(state, tokens) -> (state, f_L)``, and its arguments.

    The state is (params, opt_state, dual). Matrices are sharded along their longest
    axis that the devices divide (the first of equals). Vectors and multipliers are
    replicated. A weight is gathered in the dtype of the computation when its layer
    runs, embedding and readout at the start. Gradients are scattered in that dtype. The
    collectives are explicit, in `jax.shard_map`, because XLA's partitioner reduces
    whole gradients, or gathers activations.
    """
    optimizer = optax.adam(PRIMAL_RATE)
    ascent = dual_ascent(optax.sgd(DUAL_RATE))
    constraints = descent_constraints(ALPHA)

    def init(key: Array) -> Any:
        example = jnp.zeros((1, setting.tokens), jnp.int32)
        variables = _model(setting).init(key, example, lambda readout, y: jnp.sum(y))
        params = variables["params"]
        return params, optimizer.init(params), ascent.init(setting.sizes.num_layers)

    state = jax.eval_shape(init, jax.random.key(0))
    homes = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _home(path, leaf, setting.num_devices), state
    )
    losses_of = _losses(setting, homes[0])

    def objective(params: Any, dual: DualState, tokens: Array) -> tuple[Array, Any]:
        last, losses = losses_of(params, tokens)
        scalar = last
        if losses is not None:
            scalar = lagrangian(last, constraints(losses), dual.multipliers)
        return scalar, (last, losses)

    def step(state: Any, tokens: Array) -> tuple[Any, Array]:
        params, opt_state, dual = state
        gradients, auxiliary = jax.grad(objective, has_aux=True)(params, dual, tokens)
        # The Lagrangian is linear in the losses: its gradient is the mean of the
        # devices'.
        gradients = jax.tree.map(_mean_gradient, gradients, homes[0])
        last, losses = jax.lax.pmean(auxiliary, AXIS)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        if losses is not None:
            dual = ascent.update(dual, constraints(losses))
        return (optax.apply_updates(params, updates), opt_state, dual), last

    def place(leaf: Any, home: PartitionSpec) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, home)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    by_sequence = PartitionSpec(AXIS)
    sharded = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(homes, by_sequence),
        out_specs=(homes, PartitionSpec()),
        check_vma=False,
    )
    shape = (setting.sequences * setting.num_devices, setting.tokens)
    tokens = place(jax.ShapeDtypeStruct(shape, jnp.int32), by_sequence)
    program = jax.jit(sharded, donate_argnums=0)
    return program, jax.tree.map(place, state, homes), tokens


def _model(
    setting: Setting, arrive: Callable[[Any], Any] | None = None
) -> LanguageModel:
    return LanguageModel(
        **setting.sizes._asdict(),
        classes=setting.sizes.vocabulary,
        dtype=jnp.dtype(setting.dtype),
        remat=True,
        arrive=arrive,
    )


def _losses(
    setting: Setting, homes: Any
) -> Callable[[Any, Array], tuple[Array, Array | None]]:
    """``(params, tokens) -> (f_L, losses of all layers or None)`` on one device.

    Params are shards. The label of a position is the next token, and of the last
    position the first token, which keeps the shape.
    """
    dtype = jnp.dtype(setting.dtype)
    share = setting.share
    # of one layer: without the axis of the scan
    of_layer = jax.tree.map(lambda home: PartitionSpec(*home[1:]), homes["layers"])

    def gather(shards: Any, homes: Any) -> Any:
        return jax.tree.map(
            lambda shard, home: _gather(shard.astype(dtype), home), shards, homes
        )

    def arrive(variables: Any) -> Any:
        return {"params": gather(variables["params"], of_layer)}

    model = _model(setting, arrive)
    run: Callable[..., Any] = model.apply

    def reader(labels: Array) -> Read:
        chunk = min(setting.chunk, labels.shape[1])
        return lambda readout, y: cross_entropy(readout, y, labels, chunk=chunk)

    def losses(params: Any, tokens: Array) -> tuple[Array, Array | None]:
        ends = {
            name: gather(params[name], homes[name]) for name in ("embedding", "readout")
        }
        variables = {"params": params | ends}
        labels = jnp.roll(tokens, -1, axis=1)
        if share is None:
            return run(variables, tokens, reader(labels))
        options = {
            "every": reader(labels[:, ::share]),
            "sample": lambda y: y[:, ::share],
        }
        return run(variables, tokens, reader(labels), **options)

    return losses


def _gather(shard: Array, home: PartitionSpec) -> Array:
    """Gathers an array. Backward, the sum of the gradients is scattered."""
    if AXIS not in home:
        return shard
    return jax.lax.all_gather(shard, AXIS, axis=list(home).index(AXIS), tiled=True)


def _mean_gradient(gradient: Array, home: PartitionSpec) -> Array:
    """The mean over devices. `_gather` has summed gradients of sharded arrays."""
    if AXIS in home:
        return gradient / jax.lax.axis_size(AXIS)
    return jax.lax.pmean(gradient, AXIS)


def _home(path: Any, leaf: Any, num_devices: int) -> PartitionSpec:
    """The placement of a leaf of the state. The leading axis of layers is not split."""
    first = int("'layers'" in jax.tree_util.keystr(path))
    axes = [
        axis for axis in range(first, leaf.ndim) if leaf.shape[axis] % num_devices == 0
    ]
    if leaf.ndim - first < 2 or not axes:
        return PartitionSpec(*[None] * min(first, leaf.ndim))
    longest = max(axes, key=lambda axis: leaf.shape[axis])
    names: list[str | None] = [None] * leaf.ndim
    names[longest] = AXIS
    return PartitionSpec(*names)
