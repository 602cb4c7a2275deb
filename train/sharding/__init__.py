"""Where arrays live: a mesh of devices, the rules that share parameters out over it, and what a step communicates."""

from train.sharding.collectives import Collective, collectives
from train.sharding.mesh import describe_mesh, keep_rows, make_mesh
from train.sharding.placement import Placed, own_rows, place, put_beside
from train.sharding.rules import RULES, gather_first, path_name, shardings

__all__ = [
    "RULES",
    "Collective",
    "Placed",
    "collectives",
    "describe_mesh",
    "gather_first",
    "keep_rows",
    "make_mesh",
    "own_rows",
    "path_name",
    "place",
    "put_beside",
    "shardings",
]
