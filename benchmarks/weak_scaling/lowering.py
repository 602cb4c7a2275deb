"""The training step of a sharded decoder, lowered and compiled without an array being made."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from benchmarks.language_model import LanguageModel, Read, cross_entropy
from benchmarks.weak_scaling.collectives import bytes_sent, collectives
from benchmarks.weak_scaling.setting import TOPOLOGIES, Compiled, Setting
from unroll_jax.constrained import DualState, descent_constraints, dual_ascent, lagrangian

__all__ = ["compiled", "lowered", "lowered_bytes"]

AXIS = "fsdp"
ALPHA, PRIMAL_RATE, DUAL_RATE = 0.05, 1e-4, 1e-2


def compiled(setting: Setting) -> Compiled:
    """Compiles a step, and reads what it communicates and holds."""
    program = lowered(setting)
    began = time.perf_counter()
    binary = program.compile()
    seconds = time.perf_counter() - began
    memory: Any = binary.memory_analysis()
    sent, counts = _sums(binary.as_text() or "")
    return Compiled(sent, counts, memory.argument_size_in_bytes, memory.temp_size_in_bytes, seconds)


def lowered_bytes(setting: Setting) -> dict[str, float]:
    """Kind -> bytes that a device sends in a step, read from the program as it goes to the compiler."""
    program: Any = lowered(setting).compiler_ir("hlo")
    return _sums(program.as_hlo_text())[0]


def _sums(text: str) -> tuple[dict[str, float], dict[str, int]]:
    sent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for collective in collectives(text):
        sent[collective.kind] += bytes_sent(collective)
        counts[collective.kind] += collective.times
    return dict(sent), dict(counts)


def lowered(setting: Setting) -> jax.stages.Lowered:
    """The step ``(state, tokens) -> (state, f_L)``; the state is (params, opt_state, dual), donated.

    Matrices are sharded along their longest axis (the first of equals) that the devices divide, vectors and
    multipliers replicated. A weight is gathered in the dtype of the computation when its layer runs, embedding and
    readout at the start; their gradients are scattered in it. The collectives are written out, in `jax.shard_map`: left
    to choose, XLA's partitioner reduces gradients whole, or gathers activations.
    """
    mesh, optimizer, ascent = _mesh(setting), optax.adam(PRIMAL_RATE), dual_ascent(optax.sgd(DUAL_RATE))
    constraints = descent_constraints(ALPHA)

    def init(key: Array) -> Any:
        example = jnp.zeros((1, setting.tokens), jnp.int32)
        params = _model(setting).init(key, example, lambda readout, y: jnp.sum(y))["params"]
        return params, optimizer.init(params), ascent.init(setting.sizes.num_layers)

    state = jax.eval_shape(init, jax.random.key(0))
    homes = jax.tree_util.tree_map_with_path(lambda path, leaf: _home(path, leaf, setting.num_devices), state)
    losses_of = _losses(setting, homes[0])

    def objective(params: Any, dual: DualState, tokens: Array) -> tuple[Array, tuple[Array, Array | None]]:
        last, losses = losses_of(params, tokens)
        if losses is None:
            return last, (last, None)
        return lagrangian(last, constraints(losses), dual.multipliers), (last, losses)

    def step(state: Any, tokens: Array) -> tuple[Any, Array]:
        params, opt_state, dual = state
        gradients, auxiliary = jax.grad(objective, has_aux=True)(params, dual, tokens)
        # The Lagrangian is linear in the losses: its gradient is the mean of the devices'.
        gradients = jax.tree.map(_mean_gradient, gradients, homes[0])
        last, losses = jax.lax.pmean(auxiliary, AXIS)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        dual = dual if losses is None else ascent.update(dual, constraints(losses))
        return (optax.apply_updates(params, updates), opt_state, dual), last

    by_sequence = PartitionSpec(AXIS)
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=(homes, by_sequence), out_specs=(homes, PartitionSpec()), check_vma=False
    )
    place = lambda leaf, home: jax.ShapeDtypeStruct(  # noqa: E731
        leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, home)
    )
    shape = (setting.sequences * setting.num_devices, setting.tokens)
    tokens = place(jax.ShapeDtypeStruct(shape, jnp.int32), by_sequence)
    traced = jax.jit(sharded, donate_argnums=0).trace(jax.tree.map(place, state, homes), tokens)
    return traced.lower(lowering_platforms=("tpu",)) if setting.platform == "abstract" else traced.lower()


def _mesh(setting: Setting) -> Mesh | AbstractMesh:
    if setting.platform == "abstract":
        return AbstractMesh((setting.num_devices,), (AXIS,), axis_types=(AxisType.Auto,))
    if setting.platform == "cpu":
        devices = jax.devices("cpu")
    else:
        name = f"v5p:{TOPOLOGIES[setting.num_devices]}"
        devices = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    return Mesh(np.array(devices[: setting.num_devices]), (AXIS,), axis_types=(AxisType.Auto,))


def _model(setting: Setting, arrive: Callable[[Any], Any] | None = None) -> LanguageModel:
    sizes, dtype = setting.sizes, jnp.dtype(setting.dtype)
    return LanguageModel(**sizes._asdict(), classes=sizes.vocabulary, dtype=dtype, remat=True, arrive=arrive)


def _losses(setting: Setting, homes: Any) -> Callable[[Any, Array], tuple[Array, Array | None]]:
    """``(shards of the params, tokens of the device) -> (f_L, losses of all layers or None)``.

    Each position's label is the next token; the last one's is the first, which changes no shape.
    """
    dtype, share = jnp.dtype(setting.dtype), setting.share
    of_layer = jax.tree.map(lambda home: PartitionSpec(*home[1:]), homes["layers"])

    def gathered(shards: Any, homes: Any) -> Any:
        return jax.tree.map(lambda shard, home: _gathered(shard.astype(dtype), home), shards, homes)

    model = _model(setting, arrive=lambda variables: {"params": gathered(variables["params"], of_layer)})
    run: Callable[..., Any] = model.apply

    def reader(labels: Array) -> Read:
        chunk = min(setting.chunk, labels.shape[1])
        return lambda readout, y: cross_entropy(readout, y, labels, chunk=chunk)

    def losses(params: Any, tokens: Array) -> tuple[Array, Array | None]:
        ends = {name: gathered(params[name], homes[name]) for name in ("embedding", "readout")}
        variables, labels = {"params": params | ends}, jnp.roll(tokens, -1, axis=1)
        if share is None:
            return run(variables, tokens, reader(labels))
        every, sample = reader(labels[:, ::share]), lambda y: y[:, ::share]
        return run(variables, tokens, reader(labels), every=every, sample=sample)

    return losses


def _gathered(shard: Array, home: PartitionSpec) -> Array:
    """The whole of an array; backward, the sum of the devices' gradients is scattered."""
    if AXIS not in home:
        return shard
    return jax.lax.all_gather(shard, AXIS, axis=list(home).index(AXIS), tiled=True)


def _mean_gradient(gradient: Array, home: PartitionSpec) -> Array:
    """Returns the mean over devices; gradients of sharded arrays are summed already, by `_gathered`."""
    return gradient / jax.lax.axis_size(AXIS) if AXIS in home else jax.lax.pmean(gradient, AXIS)


def _home(path: Any, leaf: Any, num_devices: int) -> PartitionSpec:
    """Returns the placement of a leaf of the state; the leading axis of the layers is never split."""
    if "'layers'" in jax.tree_util.keystr(path) and leaf.ndim > 0:
        return PartitionSpec(None, *_spec(leaf.shape[1:], num_devices))
    return _spec(leaf.shape, num_devices)


def _spec(shape: tuple[int, ...], num_devices: int) -> PartitionSpec:
    axes = [axis for axis, size in enumerate(shape) if size % num_devices == 0]
    if len(shape) < 2 or not axes:
        return PartitionSpec()
    longest = max(axes, key=lambda axis: shape[axis])
    return PartitionSpec(*(AXIS if axis == longest else None for axis in range(len(shape))))
