"""Tables of runs by name: their experiments, and what varies between the cells. A new one is a row here."""

from typing import NamedTuple

__all__ = ["GRIDS", "Grid"]


class Grid(NamedTuple):
    """One row of the table of grids.

    Attributes:
      experiments: whose runs are compared, by name.
      rooted: those that take their place where --data.root is given; () for the same ones.
      over: values by option, as --over.OPTION has them; what is typed takes the place of a value here.
      paper: where it comes from.
    """

    experiments: tuple[str, ...]
    rooted: tuple[str, ...]
    over: dict[str, str]
    paper: str


GRIDS: dict[str, Grid] = {
    "video": Grid(
        experiments=("video-ut", "video-dust", "video-vit"),
        rooted=("ucsd-ut", "ucsd-dust", "ucsd-vit"),
        over={
            "num-layers": "3,5,7",
            "train-gamma": "0,0.09,0.11,0.13,0.15",
            "method": "erm,constrained",
            "seed": "0,1,2",
        },
        paper="Porras-Valenzuela, Hadou, Ribeiro, Table 3",
    ),
}
