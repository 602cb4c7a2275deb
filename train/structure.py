"""A pytree of arrays as flat names and a JSON description, from which the same pytree is built again."""

from typing import Any

import numpy as np

from train.errors import UserError
from unroll_jax.energies.dust import DustParams, ListaParams
from unroll_jax.energies.feedforward import FeedForwardParams
from unroll_jax.energies.heads import HeadsParams
from unroll_jax.energies.hopfield import HopfieldParams
from unroll_jax.energies.opteq import OptEqParams
from unroll_jax.energies.pairwise import AttentionParams
from unroll_jax.energies.transformer import TransformerParams
from unroll_jax.energies.unit_layer import UnitLayerParams
from unroll_jax.energies.unrolled_layer import UnrolledLayerParams
from unroll_jax.fixed_point.monotone_operator import MonotoneParams

__all__ = ["PARAMETER_TYPES", "flatten", "unflatten"]

# The only types that a description may name, so that reading one runs no code of the file's choosing.
PARAMETER_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        AttentionParams,
        DustParams,
        FeedForwardParams,
        HeadsParams,
        HopfieldParams,
        ListaParams,
        MonotoneParams,
        OptEqParams,
        TransformerParams,
        UnitLayerParams,
        UnrolledLayerParams,
    )
}
SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple}


def flatten(tree: Any, name: str = "") -> tuple[Any, dict[str, np.ndarray]]:
    """The description of a tree, and its arrays by their keys, fields and places joined by dots.

    An array is described by its name, None by null, and everything else by its type and entries.

    Raises:
      UserError: if the tree holds what a description cannot, or keys that dots would not tell apart.
    """
    if tree is None:
        return None, {}
    entries: Any
    if type(tree) is dict:
        kind, entries = "dict", tree
    elif type(tree) in SEQUENCES.values():
        kind, entries = type(tree).__name__, {str(place): entry for place, entry in enumerate(tree)}
    elif type(tree) in PARAMETER_TYPES.values():
        kind, entries = type(tree).__name__, tree._asdict()
    elif hasattr(tree, "dtype") and name:
        return name, {name: np.asarray(tree)}
    else:
        raise UserError(
            f"parameters cannot be exported: {name or 'the whole'} is a {type(tree).__name__}, which is neither an "
            f"array, a dict, a list or tuple, nor one of {', '.join(PARAMETER_TYPES)}"
        )
    described, arrays = {}, {}
    for key, entry in entries.items():
        if not isinstance(key, str) or not key or "." in key:
            raise UserError(
                f"parameters cannot be exported: key {key!r} in {name or 'the whole'} is no name without dots"
            )
        described[key], found = flatten(entry, f"{name}.{key}" if name else key)
        arrays |= found
    return {"type": kind, "entries": described}, arrays


def unflatten(described: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The tree of a description.

    Raises:
      ValueError: if the description is none, or names what there is not.
    """
    if described is None:
        return None
    if isinstance(described, str):
        if described not in arrays:
            raise ValueError(f"no array is called {described}")
        return arrays[described]
    if not isinstance(described, dict) or not isinstance(described.get("entries"), dict):
        raise ValueError("its structure is none")
    kind = described.get("type")
    entries = {key: unflatten(entry, arrays) for key, entry in described["entries"].items()}
    if kind == "dict":
        return entries
    if kind in SEQUENCES:
        return SEQUENCES[kind](entries.values())
    cls: Any = PARAMETER_TYPES.get(str(kind))
    if cls is None or set(cls._fields) != set(entries):
        raise ValueError(f"its structure has a {kind} of {', '.join(entries)}, unknown to this version of the code")
    return cls(**entries)
