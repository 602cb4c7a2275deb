"""Does training an 8-billion-parameter decoder scale from 8 devices to 512? On
paper, and by the traced program."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Jaxpr
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from benchmarks.language_model import (
    LanguageModel,
    Read,
    cross_entropy,
    matmul_flops_a_token,
)
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
# forward, forward again in the backward pass (remat), and two products backward for
# each
PASSES = 4


class DecoderSizes(NamedTuple):
    """Sizes of a decoder; see `LanguageModel`."""

    vocabulary: int
    dim: int
    num_layers: int
    heads: int
    kv_heads: int
    hidden: int


class Setting(NamedTuple):
    """A training step on devices that hold a shard of everything, and their own
    sequences."""

    num_devices: int
    sizes: DecoderSizes
    sequences: int  # on each device
    tokens: int  # of a sequence
    chunk: int  # positions that are read at a time
    # one position in so many is read at every layer; None trains by plain risk
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
    # NVLink in a node of 8; beyond it 8 rings at once, each over another of the node's
    # 8 InfiniBand cards of 400 Gbit/s
    Accelerator("H100 SXM", 989e12, 8, 450e9, 400e9),
)


def main(*, quick: bool = False, peers: bool = True) -> Record:
    """Prints bytes sent per device and step, by formula and as traced, and the step
    times that follow."""
    del peers  # there are none
    numbers = (DEVICES[0], DEVICES[-1]) if quick else DEVICES
    print(
        f"decoder of {sum(num_params(LARGE.sizes)) / 1e9:.2f} billion parameters,"
        f" {LARGE.sequences} x {LARGE.tokens} tokens a device; constraints on every"
        f" layer, one position in {LARGE.share}; all is sharded over all devices"
    )
    settings = [LARGE._replace(num_devices=number) for number in numbers]
    traced = [sum(sent_bytes(setting).values()) for setting in settings]
    plain = [
        sum(sent_bytes(setting._replace(share=None)).values()) for setting in settings
    ]
    added = max(one - other for one, other in zip(traced, plain, strict=True))
    print(f"constraints add at most {added:.0f} bytes a step and device")
    figures, rows = {"bytes_added": added}, []
    for setting, sent in zip(settings, traced, strict=True):
        number, formula = setting.num_devices, sum(formula_bytes(setting).values())
        figures |= {f"formula_{number}_bytes": formula, f"traced_{number}_bytes": sent}
        row = [str(number), f"{formula / 1e9:.2f}", f"{sent / 1e9:.2f}"]
        for accelerator in ACCELERATORS:
            compute, network = step_seconds(setting, sent, accelerator)
            shares = {
                "overlapped": compute / max(compute, network),
                "apart": compute / (compute + network),
            }
            figures |= {
                f"{accelerator.name}_{number}_{name}": share
                for name, share in shares.items()
            }
            row += [
                f"{1e3 * compute:.0f}",
                f"{1e3 * network:.0f}",
                *(f"{share:.0%}" for share in shares.values()),
            ]
        rows.append(row)
    titles = [
        f"{one.name}: {what}"
        for one in ACCELERATORS
        for what in ("ms", "network", "within", "after")
    ]
    print(table(["devices", "formula GB", "traced", *titles], rows))
    print(
        "ms: at the published peak; network: at the published bandwidth, by ring"
        " algorithms, without latency"
    )
    print(
        "within, after: share of the peak if the network runs behind the computing, or"
        " before and after it"
    )
    return Record(figures)


def num_params(sizes: DecoderSizes) -> tuple[int, int]:
    """Weights of the matrices:
    ``(of all layers, of the embedding and the readout)``. Scales of norms are left
    out."""
    narrow = sizes.dim * sizes.kv_heads // sizes.heads
    layer = 2 * sizes.dim * (sizes.dim + narrow) + 3 * sizes.dim * sizes.hidden
    return sizes.num_layers * layer, 2 * sizes.vocabulary * sizes.dim


def formula_bytes(setting: Setting) -> dict[str, float]:
    """Kind -> bytes that a device sends in a step, of matrices only, by ring
    algorithms.

    Layers are gathered twice, as they run forward twice, embedding and readout once;
    every gradient is scattered once.
    """
    layers, ends = num_params(setting.sizes)
    others = (
        (setting.num_devices - 1)
        / setting.num_devices
        * jnp.dtype(setting.dtype).itemsize
    )
    return {
        "all_gather": (2 * layers + ends) * others,
        "reduce_scatter": (layers + ends) * others,
    }


def step_seconds(
    setting: Setting, sent: float, accelerator: Accelerator
) -> tuple[float, float]:
    """Seconds of a step's matrix products, recomputation included, and of the
    ``sent`` bytes."""
    sizes, tokens = setting.sizes, setting.sequences * setting.tokens
    layers, readout = matmul_flops_a_token(_model(setting), setting.tokens)
    read = (
        tokens
        if setting.share is None
        else tokens * (1 + (sizes.num_layers + 1) / setting.share)
    )
    near = setting.num_devices <= accelerator.near
    bandwidth = accelerator.near_bandwidth if near else accelerator.far_bandwidth
    return (
        PASSES * (layers * tokens + readout * read) / accelerator.peak,
        sent / bandwidth,
    )


def sent_bytes(setting: Setting) -> dict[str, float]:
    """Kind -> bytes that a device sends in a step, by the collectives of the traced
    program and ring algorithms.

    Of a result of R bytes and g devices: a gather R (g - 1) / g, a scatter R (g - 1), a
    sum twice R (g - 1) / g.
    """
    mesh = AbstractMesh((setting.num_devices,), (AXIS,), axis_types=(AxisType.Auto,))
    step, *arguments = training_step(setting, mesh)
    others, sent = (setting.num_devices - 1) / setting.num_devices, {}
    factors = {
        "all_gather": others,
        "reduce_scatter": setting.num_devices - 1,
        "psum": 2 * others,
    }
    for kind, size in _collectives(step.trace(*arguments).jaxpr.jaxpr, 1):
        sent[kind] = sent.get(kind, 0.0) + factors[kind] * size
    return sent


def _collectives(jaxpr: Jaxpr, times: int) -> Iterator[tuple[str, float]]:
    """Kind and bytes of the results of every collective, in all its runs."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("all_gather", "reduce_scatter", "psum"):
            results: Any = [out.aval for out in equation.outvars]
            yield (
                name,
                times * sum(result.size * result.dtype.itemsize for result in results),
            )
        inner = [
            getattr(leaf, "jaxpr", leaf) for leaf in jax.tree.leaves(equation.params)
        ]
        for one in (leaf for leaf in inner if isinstance(leaf, Jaxpr)):
            below = list(_collectives(one, times * equation.params.get("length", 1)))
            if below and name == "while":
                raise ValueError(
                    "collectives must be in loops of a known length, got a while_loop;"
                    " use jax.lax.scan"
                )
            yield from below


def training_step(setting: Setting, mesh: Mesh | AbstractMesh) -> tuple[Any, Any, Any]:
    """The jitted step ``(state, tokens) -> (state, f_L)``, and its arguments; the state
    is (params, opt_state, dual).

    Matrices are sharded along their longest axis (the first of equals) that the devices
    divide, vectors and multipliers replicated. A weight is gathered in the dtype of the
    computation when its layer runs, embedding and readout at the start; their gradients
    are scattered in it. The collectives are written out, in `jax.shard_map`: left to
    choose, XLA's partitioner reduces gradients whole, or gathers activations.
    """
    optimizer, ascent = optax.adam(PRIMAL_RATE), dual_ascent(optax.sgd(DUAL_RATE))
    constraints = descent_constraints(ALPHA)

    def init(key: Array) -> Any:
        example = jnp.zeros((1, setting.tokens), jnp.int32)
        params = _model(setting).init(key, example, lambda readout, y: jnp.sum(y))[
            "params"
        ]
        return params, optimizer.init(params), ascent.init(setting.sizes.num_layers)

    state = jax.eval_shape(init, jax.random.key(0))
    homes = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _home(path, leaf, setting.num_devices), state
    )
    losses_of = _losses(setting, homes[0])

    def objective(
        params: Any, dual: DualState, tokens: Array
    ) -> tuple[Array, tuple[Array, Array | None]]:
        last, losses = losses_of(params, tokens)
        return (
            last
            if losses is None
            else lagrangian(last, constraints(losses), dual.multipliers)
        ), (last, losses)

    def step(state: Any, tokens: Array) -> tuple[Any, Array]:
        params, opt_state, dual = state
        gradients, auxiliary = jax.grad(objective, has_aux=True)(params, dual, tokens)
        # The Lagrangian is linear in the losses: its gradient is the mean of the
        # devices'.
        gradients = jax.tree.map(_mean_gradient, gradients, homes[0])
        last, losses = jax.lax.pmean(auxiliary, AXIS)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        dual = dual if losses is None else ascent.update(dual, constraints(losses))
        return (optax.apply_updates(params, updates), opt_state, dual), last

    def placed(leaf: Any, home: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, home)
        )

    by_sequence = PartitionSpec(AXIS)
    sides = (homes, by_sequence), (homes, PartitionSpec())
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=sides[0], out_specs=sides[1], check_vma=False
    )
    tokens = jax.ShapeDtypeStruct(
        (setting.sequences * setting.num_devices, setting.tokens), jnp.int32
    )
    return (
        jax.jit(sharded, donate_argnums=0),
        jax.tree.map(placed, state, homes),
        placed(tokens, by_sequence),
    )


def _model(
    setting: Setting, arrive: Callable[[Any], Any] | None = None
) -> LanguageModel:
    sizes, dtype = setting.sizes, jnp.dtype(setting.dtype)
    return LanguageModel(
        **sizes._asdict(),
        classes=sizes.vocabulary,
        dtype=dtype,
        remat=True,
        arrive=arrive,
    )


def _losses(
    setting: Setting, homes: Any
) -> Callable[[Any, Array], tuple[Array, Array | None]]:
    """``(shards of the params, tokens of the device) -> (f_L, losses of all layers or None)``.

    Each position's label is the next token; the last one's is the first, which changes
    no shape.
    """
    dtype, share = jnp.dtype(setting.dtype), setting.share
    of_layer = jax.tree.map(lambda home: PartitionSpec(*home[1:]), homes["layers"])

    def gathered(shards: Any, homes: Any) -> Any:
        return jax.tree.map(
            lambda shard, home: _gathered(shard.astype(dtype), home), shards, homes
        )

    model = _model(
        setting,
        arrive=lambda variables: {"params": gathered(variables["params"], of_layer)},
    )
    run: Callable[..., Any] = model.apply

    def reader(labels: Array) -> Read:
        chunk = min(setting.chunk, labels.shape[1])
        return lambda readout, y: cross_entropy(readout, y, labels, chunk=chunk)

    def losses(params: Any, tokens: Array) -> tuple[Array, Array | None]:
        ends = {
            name: gathered(params[name], homes[name])
            for name in ("embedding", "readout")
        }
        variables, labels = {"params": params | ends}, jnp.roll(tokens, -1, axis=1)
        if share is None:
            return run(variables, tokens, reader(labels))
        every, sample = reader(labels[:, ::share]), lambda y: y[:, ::share]
        return run(variables, tokens, reader(labels), every=every, sample=sample)

    return losses


def _gathered(shard: Array, home: PartitionSpec) -> Array:
    """The whole of an array; backward, the sum of the devices' gradients is
    scattered."""
    if AXIS not in home:
        return shard
    return jax.lax.all_gather(shard, AXIS, axis=list(home).index(AXIS), tiled=True)


def _mean_gradient(gradient: Array, home: PartitionSpec) -> Array:
    """Returns the mean over devices; gradients of sharded arrays are summed already,
    by `_gathered`."""
    return (
        gradient / jax.lax.axis_size(AXIS)
        if AXIS in home
        else jax.lax.pmean(gradient, AXIS)
    )


def _home(path: Any, leaf: Any, num_devices: int) -> PartitionSpec:
    """Returns the placement of a leaf of the state; the leading axis of the layers
    is never split."""
    first = int("'layers'" in jax.tree_util.keystr(path))
    axes = [
        axis for axis in range(first, leaf.ndim) if leaf.shape[axis] % num_devices == 0
    ]
    if leaf.ndim - first < 2 or not axes:
        return PartitionSpec(*(None,) * min(first, leaf.ndim))
    longest = max(axes, key=lambda axis: leaf.shape[axis])
    return PartitionSpec(
        *(AXIS if axis == longest else None for axis in range(leaf.ndim))
    )
