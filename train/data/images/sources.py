"""Where labelled images may come from: the table of sources, and the choice of one."""

import dataclasses
from typing import Literal

from train.data.images.cifar10 import DOWNLOAD, fingerprint_cifar10, open_cifar10
from train.data.images.digits import fingerprint_digits, open_digits
from train.data.images.image_folder import fingerprint_image_folder, open_image_folder
from train.data.images.originals import ImageSet
from train.data.source import Source

__all__ = ["IMAGES", "ImageConfig"]


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """Which images to classify, and where they are kept once prepared."""

    source: Literal["digits", "cifar10", "image_folder"] = "digits"
    """digits: 8x8 grey digits, no files needed. cifar10: the binary version, as archive or folder; downloaded where no
    root is given. image_folder: a folder or tar archive with train/CLASS/NAME.png and test/CLASS/NAME.png (or jpg)."""
    root: str | None = None
    """Where the original files are; digits need none."""
    prepared: str | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""
    validation_share: float = 0.1
    """Share of the train images held out for validation, the same ones every time, as many of each class as its share
    in train; digits, and a folder with a validation split, keep their own."""


IMAGES: dict[str, Source[ImageSet]] = {
    "digits": Source("", fingerprint_digits, open_digits),
    "cifar10": Source("cifar-10-binary.tar.gz or its folder", fingerprint_cifar10, open_cifar10, DOWNLOAD),
    "image_folder": Source("the folder or tar archive of images", fingerprint_image_folder, open_image_folder),
}
