"""The training step of a sharded decoder, lowered and compiled without an array being made."""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from benchmarks.language_model import LanguageModel, Read, cross_entropy
from benchmarks.weak_scaling.collectives import bytes_sent, collectives
from benchmarks.weak_scaling.program import TOPOLOGIES, Compiled, Setting
from unroll_jax.constrained import DualState, descent_constraints, dual_ascent, lagrangian

__all__ = ["compiled", "lowered"]

AXIS = "fsdp"
ALPHA, PRIMAL_RATE, DUAL_RATE = 0.05, 1e-4, 1e-2


def compiled(setting: Setting) -> Compiled:
    """Compiles a step, and reads what it communicates and holds."""
    program = lowered(setting)
    began = time.perf_counter()
    # Products of gathered weights are otherwise cut into pieces that travel one by one, which hides the collectives
    # from whoever counts them; the bytes are the same.
    options = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 2**20} if setting.platform == "tpu" else None
    binary = program.compile(compiler_options=options)
    seconds = time.perf_counter() - began
    sent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for found in collectives(binary.as_text() or "", num_devices=setting.num_devices):
        sent[found.kind] += bytes_sent(found)
        counts[found.kind] += found.times
    memory: Any = binary.memory_analysis()
    return Compiled(dict(sent), dict(counts), memory.argument_size_in_bytes, memory.temp_size_in_bytes, seconds)


def lowered(setting: Setting) -> jax.stages.Lowered:
    """The step ``((params, opt_state, dual), tokens) -> (..., f_L)``: state donated, everything sharded over one axis.

    Matrices are sharded along their longest axis (the first of equals) that the devices divide, vectors and
    multipliers replicated; each weight is gathered where it is used, in the dtype of the computation, and gradients
    are scattered in it.
    """
    mesh = _mesh(setting)
    model, optimizer, ascent = _model(setting, mesh), optax.adam(PRIMAL_RATE), dual_ascent(optax.sgd(DUAL_RATE))
    constraints = descent_constraints(ALPHA)

    def init(key: Array) -> Any:
        params = model.init(key, jnp.zeros((1, setting.tokens), jnp.int32), lambda readout, y: jnp.sum(y))
        return params, optimizer.init(params), ascent.init(setting.sizes.num_layers)

    def objective(params: Any, dual: DualState, tokens: Array) -> tuple[Array, tuple[Array, Array | None]]:
        last, losses = _losses(model, setting, params, tokens)
        if losses is None:
            return last, (last, None)
        return lagrangian(losses, dual.multipliers, constraints) + (last - losses[-1]), (last, losses)

    def step(state: Any, tokens: Array) -> tuple[Any, Array]:
        params, opt_state, dual = state
        gradients, (last, losses) = jax.grad(objective, has_aux=True)(params, dual, tokens)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        dual = dual if losses is None else ascent.update(dual, constraints(losses))
        return (optax.apply_updates(params, updates), opt_state, dual), last

    state = jax.eval_shape(init, jax.random.key(0))
    homes = jax.tree_util.tree_map_with_path(lambda path, leaf: NamedSharding(mesh, _home(path, leaf, mesh)), state)
    state = jax.tree.map(lambda leaf, home: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=home), state, homes)
    everywhere, by_sequence = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (AXIS,)))
    shape = (setting.sequences * setting.num_devices, setting.tokens)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=by_sequence)
    return jax.jit(step, donate_argnums=0, out_shardings=(homes, everywhere)).lower(state, tokens)


def _mesh(setting: Setting) -> Mesh:
    if setting.platform == "cpu":
        devices = jax.devices("cpu")
    else:
        name = f"v5p:{TOPOLOGIES[setting.num_devices]}"
        devices = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    return Mesh(np.array(devices[: setting.num_devices]), (AXIS,), axis_types=(AxisType.Auto,))


def _model(setting: Setting, mesh: Mesh) -> LanguageModel:
    sizes, place = setting.sizes, _gathered(mesh)
    own = NamedSharding(mesh, PartitionSpec(AXIS))

    def copied(weight: Array) -> Array:
        """On a leading axis a copy for each device, which sums its gradient on its own over all that it reads."""
        copies = jnp.broadcast_to(place(weight), (mesh.size, *weight.shape))
        return jax.lax.with_sharding_constraint(copies, own)

    return LanguageModel(
        **sizes._asdict(),
        classes=sizes.vocabulary,
        dtype=jnp.dtype(setting.dtype),
        remat=True,
        place=place,
        place_readout=copied,
    )


def _losses(model: LanguageModel, setting: Setting, params: Any, tokens: Array) -> tuple[Array, Array | None]:
    """Each position's label is the next token; the last one's is the first, which changes no shape."""
    labels = jnp.roll(tokens, -1, axis=1)
    run: Callable[..., Any] = model.apply
    share = setting.share
    if share is None:
        return run(params, tokens, _by_device(setting, labels))
    every = _by_device(setting, labels[:, ::share])
    return run(params, tokens, _by_device(setting, labels), every=every, sample=lambda y: y[:, ::share])


def _by_device(setting: Setting, labels: Array) -> Read:
    """Each device reads its own sequences with its own copy of the readout."""
    chunk = min(setting.chunk, labels.shape[1])
    own = labels.reshape(setting.num_devices, setting.sequences, -1)

    def read(copies: dict[str, Array], y: Array) -> Array:
        states = y.reshape(*y.shape[:-3], setting.num_devices, setting.sequences, *y.shape[-2:])
        measure = lambda readout, y, labels: cross_entropy(readout, y, labels, chunk=chunk)  # noqa: E731
        return jnp.mean(jax.vmap(measure, in_axes=(0, y.ndim - 3, 0))(copies, states, own), axis=0)

    return read


def _gathered(mesh: Mesh) -> Callable[[Array], Array]:
    """A weight on every device; its gradient goes back to where the weight lives."""

    def constrain(array: Array, spec: PartitionSpec) -> Array:
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))

    # Autodiff would constrain the gradient as the weight is, to be whole on every device: twice the bytes.
    gathered = jax.custom_vjp(lambda weight: constrain(weight, PartitionSpec()))
    gathered.defvjp(
        lambda weight: (constrain(weight, PartitionSpec()), None),
        lambda _, gradient: (constrain(gradient, _spec(gradient.shape, mesh.size)),),
    )
    return gathered


def _home(path: Any, leaf: Any, mesh: Mesh) -> PartitionSpec:
    """Where a leaf of the state lives; the leading axis of the layers is never split."""
    if "'layers'" in jax.tree_util.keystr(path) and leaf.ndim > 0:
        spec = _spec(leaf.shape[1:], mesh.size)
        return PartitionSpec(None, *spec) if len(spec) else spec
    return _spec(leaf.shape, mesh.size)


def _spec(shape: tuple[int, ...], num_devices: int) -> PartitionSpec:
    axes = [axis for axis, size in enumerate(shape) if size % num_devices == 0]
    if len(shape) < 2 or not axes or math.prod(shape) == 0:
        return PartitionSpec()
    longest = max(axes, key=lambda axis: shape[axis])
    return PartitionSpec(*(AXIS if axis == longest else None for axis in range(len(shape))))
