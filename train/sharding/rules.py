"""Rules of sharding, one table from parameters to axes of the mesh; and policies of
rematerialisation by name."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..config.errors import UserError, option_text
from ..config.run import Remat

Axes = str | tuple[str, ...] | None
Rules = Sequence[tuple[str, tuple[Axes, ...]]]
Path = tuple[str, ...]

# The first row whose pattern matches a parameter's path applies. Its axes are for the
# last dimensions; earlier ones (layers in a stack, a convolution's window) are not
# sharded. Other parameters, as biases, are on every device.
RULES: Rules = (
    # Unrolled transformer. Attention logits are sums over the rows of V; W is added to
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
