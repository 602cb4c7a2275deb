"""Where scenes with maps of classes may come from: the table of sources, and the choice of one."""

import dataclasses
from typing import Literal

from train.data.pictures import PictureSet
from train.data.scenes.camvid import fingerprint_camvid, open_camvid
from train.data.scenes.cityscapes import fingerprint_cityscapes, open_cityscapes
from train.data.scenes.shapes import fingerprint_shapes, open_shapes
from train.data.source import Source

__all__ = ["SCENES", "SceneConfig"]


@dataclasses.dataclass(frozen=True)
class SceneConfig:
    """Which scenes to segment, and where they are kept once prepared."""

    source: Literal["shapes", "camvid", "cityscapes"] = "shapes"
    """shapes: scenes drawn by the program, no files needed. camvid: the layout of SegNet (train, trainannot, val, ...).
    cityscapes: leftImg8bit and gtFine as published."""
    root: str | None = None
    """The folder or tar archive of the originals; shapes need none."""
    prepared: str | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""
    reduction: int = 1
    """Divides both sides of the originals: images by averaging, labels by keeping one pixel of each block. At 1,
    Cityscapes has 29 GB of pixels."""


SCENES: dict[str, Source[PictureSet]] = {
    "shapes": Source("", fingerprint_shapes, open_shapes),
    "camvid": Source("the folder or tar archive with train, trainannot, ...", fingerprint_camvid, open_camvid),
    "cityscapes": Source("the folder with leftImg8bit and gtFine", fingerprint_cityscapes, open_cityscapes),
}
