"""The mesh, devices in three named axes from text such as ``data=2,fsdp=4``, and rules
of which parameters lie on which axis."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .config.errors import OptionError, UserError, option_text
from .config.run import Remat

# data: copies of the model, each with its share of a batch. fsdp: the same with sharded
# parameters, gathered layer by layer. tensor: the devices that compute one layer
# together.
AXES = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")  # the axes that divide a batch
Axes = str | tuple[str, ...] | None
Rules = Sequence[tuple[str, tuple[Axes, ...]]]
Path = tuple[str, ...]
# The first row whose pattern matches a parameter's path applies. Its axes are for the
# last dimensions. Earlier ones (layers in a stack, a convolution's window) are not
# sharded. Other parameters, as biases, are on every device.
RULES: Rules = (
    # Unrolled transformer. Attention logits are sums over the rows of V. W is added to
    # its transpose, so W and U are stored in shards and gathered.
    (r"layers/V$", ("tensor", "fsdp")),
    (r"layers/[WU]$", (("fsdp", "tensor"), None)),
    # Transformers: heads and hidden units over tensor.
    (r"embedding$", (None, ("fsdp", "tensor"))),
    (r"(query|key|value|up|gate)/kernel$", ("fsdp", "tensor")),
    (r"(output|down)/kernel$", ("tensor", "fsdp")),
    (r"(query|key|value|up|gate)/bias$", ("tensor",)),
    (r"readout/kernel$", (("fsdp", "tensor"), None)),
    # Networks of images. Channels of an image and classes are too few to shard.
    (r"stem/.*/kernel$", (None, "fsdp")),
    (r"(kernel|[WUAB])$", ("fsdp", None)),
)
# Values stored for the backward pass, which recomputes the rest. None: nothing is
# recomputed.
POLICIES: dict[Remat, Callable[..., Any] | None] = {
    "none": None,
    "everything": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def make_mesh(
    text: str | None,
    *,
    batch_size: int,
    accumulate: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Returns the mesh of a run; without a text only ``data``, over as many devices as
    divide all and the batch. In a text such as ``data=2,fsdp=4``, axes that are not
    named have size 1. A mesh smaller than the devices takes the first ones, for
    comparisons. Its size must divide their number. Each part of a batch is divided over
    the mesh.
    """
    devices = jax.devices() if devices is None else devices
    part = batch_size // accumulate
    sizes = {"data": math.gcd(part, len(devices))} if text is None else parse_mesh(text)
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    count = math.prod(shape)
    if len(devices) % count:
        raise UserError(
            f"{option_text('mesh', text)} asks for {count} devices, which does not"
            f" divide the {len(devices)} there are; on a CPU,"
            f" XLA_FLAGS=--xla_force_host_platform_device_count={count} simulates them"
        )
    ways = math.prod(sizes.get(axis, 1) for axis in BATCH)
    if part % ways:
        parts = f" / {option_text('accumulate', accumulate)}" if accumulate > 1 else ""
        raise UserError(
            f"{option_text('batch_size', batch_size)}{parts} does not divide over"
            f" {option_text('mesh', text)}, which divides a batch into {ways} parts"
            f" (data x fsdp); pass a multiple of {ways * accumulate}, or another mesh"
        )
    mesh = jax.make_mesh(
        shape, AXES, (AxisType.Auto,) * len(AXES), devices=devices[:count]
    )
    without = {device.process_index for device in devices} - {
        device.process_index for device in mesh.devices.flat
    }
    if without:
        raise UserError(
            f"{option_text('mesh', text or describe_mesh(mesh))} leaves process"
            f" {min(without)} without a device; pass a mesh (and a"
            f" {option_text('batch_size')} that divides over it) with devices of every"
            " process, or start fewer processes"
        )
    return mesh


def parse_mesh(text: str) -> dict[str, int]:
    """Returns the sizes by axis of a text such as ``data=2,fsdp=4``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (piece.strip() for piece in part.partition("="))
        if axis not in AXES or axis in sizes or not size.isdecimal() or int(size) < 1:
            allowed = (
                f"axes of {', '.join(AXES)}, each once with a size of at least 1, as in"
                " data=2,fsdp=4"
            )
            raise OptionError("mesh", allowed, repr(text))
        sizes[axis] = int(size)
    return sizes


def describe_mesh(mesh: Mesh) -> str:
    """Describes the mesh, with the idle devices."""
    sizes = (
        ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items() if size > 1)
        or "data=1"
    )
    there = jax.device_count()
    if mesh.size == there:
        return f"{there} device{'s' * (there > 1)} ({sizes})"
    return f"{mesh.size} of {there} devices ({sizes}), {there - mesh.size} IDLE"


def rows(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: its rows over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that every device has a copy of."""
    return NamedSharding(mesh, PartitionSpec())


def keep_rows(y: jax.Array, *, axis: int = 0) -> jax.Array:
    """Returns ``y`` with its rows, on ``axis``, over data and fsdp as in the batch,
    unchanged without a mesh. For inputs of layers: else the partitioner may move rows
    to the shards of a parameter, which should be gathered.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return y
    return jax.lax.with_sharding_constraint(y, PartitionSpec(*[None] * axis, BATCH))


def put(batch: Any, mesh: Mesh) -> Any:
    """Puts a batch on the devices, its rows over data and fsdp. Each process gives
    its rows."""
    return jax.make_array_from_process_local_data(rows(mesh), batch)


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray | None:
    """Returns the rows of a batch on this process's devices, or None for all of
    them."""
    parts = rows(mesh).addressable_devices_indices_map((batch_size,)).values()
    row_numbers = np.unique(
        np.concatenate([np.arange(batch_size)[part] for part in parts])
    )
    return None if len(row_numbers) == batch_size else row_numbers


def put_beside(params: Any, examples: Any) -> Any:
    """Puts examples on the mesh of the parameters: rows over the devices if they
    divide, else all on each. Every process gives all examples. Without a mesh, the
    examples are returned unchanged.
    """
    sharding = jax.tree.leaves(params)[0].sharding
    if not isinstance(sharding, NamedSharding):
        return examples
    mesh = sharding.mesh
    assert isinstance(mesh, Mesh)
    ways = mesh.shape[BATCH[0]] * mesh.shape[BATCH[1]]
    divide = all(np.shape(part)[0] % ways == 0 for part in jax.tree.leaves(examples))
    where = rows(mesh) if divide else replicated(mesh)

    def put(part: Any) -> jax.Array:
        # device_put would compare the arrays of all processes.
        whole = np.asarray(part)
        return jax.make_array_from_callback(
            whole.shape, where, lambda index: whole[index]
        )

    return jax.tree.map(put, examples)


def gathered(params: Any) -> Any:
    """Returns parameters whole on every device, for networks that apply their layers
    many times per step."""
    if not jax.sharding.get_abstract_mesh().empty:
        return jax.lax.with_sharding_constraint(params, PartitionSpec())
    # a traced array has none
    where = getattr(jax.tree.leaves(params)[0], "sharding", None)
    if not isinstance(where, NamedSharding):
        return params
    return jax.device_put(params, NamedSharding(where.mesh, PartitionSpec()))


def rematerialised(function: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """Returns the function with a backward pass that recomputes by a policy of
    `POLICIES`."""
    policy = POLICIES[remat]
    return function if policy is None else jax.checkpoint(function, policy=policy)


def shardings(state: Any, mesh: Mesh, *, rules: Rules = RULES) -> Any:
    """Returns the sharding of every array of a training state. Parameters follow the
    rules. Arrays of a parameter's shape whose path ends in its path (moments) follow
    the parameter. Other arrays have a copy on every device.
    """
    params = {
        _keys(path): (leaf.shape, _spec(_keys(path), leaf.shape, mesh, rules))
        for path, leaf in jax.tree.leaves_with_path(state.params)
    }
    _check_useful(mesh, [spec for _, spec in params.values()])

    def place(path: Any, leaf: Any) -> NamedSharding:
        keys = _keys(path)
        named = (
            params[keys[start:]] for start in range(len(keys)) if keys[start:] in params
        )
        spec = next(
            (spec for shape, spec in named if shape == leaf.shape), PartitionSpec()
        )
        return NamedSharding(mesh, spec)

    return jax.tree.map_with_path(place, state)


def path_name(path: Any) -> str:
    """Returns a path of `jax.tree.leaves_with_path` as in the rules:
    ``params/layer_1/W``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _keys(path: Any) -> Path:
    return tuple(path_name((entry,)) for entry in path)


def _spec(
    keys: Path, shape: tuple[int, ...], mesh: Mesh, rules: Rules
) -> PartitionSpec:
    name = "/".join(keys)
    axes = next((axes for pattern, axes in rules if re.search(pattern, name)), ())
    if len(axes) > len(shape):
        raise ValueError(
            f"the rule {axes} has more axes than {name} of shape {shape} has dimensions"
        )
    whole = (None,) * (len(shape) - len(axes)) + axes
    for size, axis in zip(shape, whole, strict=True):
        ways = math.prod(mesh.shape[part] for part in _parts(axis))
        if size % ways:
            raise UserError(
                f"{option_text('mesh')} has {' x '.join(_parts(axis))} = {ways}, which"
                f" does not divide {size} in the shape {shape} of {name}; pass a size"
                " that does, or data in its place"
            )
    return PartitionSpec(*whole)


def _check_useful(mesh: Mesh, specs: Sequence[PartitionSpec]) -> None:
    used = {part for spec in specs for axis in spec for part in _parts(axis)}
    for axis in ("fsdp", "tensor"):
        if mesh.shape[axis] > 1 and axis not in used:
            raise UserError(
                f"{option_text('mesh')} has {axis}={mesh.shape[axis]}, over which no"
                " parameter of this experiment is divided; pass data in its place"
            )


def _parts(axis: Axes) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else axis or ()
