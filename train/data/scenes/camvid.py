"""CamVid road scenes as SegNet lays them out: train, trainannot, val, valannot, test, testannot."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from train.data.image_files import ImageFile, fingerprint_images, open_image_files
from train.data.pictures import PictureSet
from train.data.scenes.originals import SceneFiles, class_table, scenes_from_files
from train.data.source import Log
from train.errors import UserError

__all__ = ["CLASSES", "fingerprint_camvid", "open_camvid"]

CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
UNLABELLED = 11
TABLE = class_table(
    {number: number for number in range(11)}, uncounted=[UNLABELLED], said="0 to 10, and 11 for unlabelled"
)
LAYOUT = "ROOT/train/NAME.png with its labels in ROOT/trainannot/NAME.png, and so for val and test"
FILE = re.compile(r"(?:(.*?)/)?(train|val|test)(annot)?/([^/]+)\.\w+", re.DOTALL)
SPLITS = {"train": "train", "validation": "val", "test": "test"}
Found = dict[tuple[str, str], ImageFile]  # by folder and name without suffix


def fingerprint_camvid(root: Path) -> str:
    """Fingerprints the images and labels of a folder, or an archive.

    Raises:
      UserError: if the root is missing, empty or holds no images.
    """
    return fingerprint_images(root, what="images", layout=LAYOUT)


@contextlib.contextmanager
def open_camvid(root: Path, log: Log) -> Iterator[PictureSet]:
    """Opens the scenes below a root; they can be read while the context lasts.

    Raises:
      UserError: for a root, an archive or a file that cannot be used; it names the culprit.
    """
    del log  # what is wrong with scenes is an error
    with open_image_files(root, what="images") as files:
        found = _found(files, root)
        splits = {split: _paired(found, folder, root) for split, folder in SPLITS.items()}
        yield scenes_from_files(splits, TABLE, CLASSES, root=root)


def _found(files: list[ImageFile], root: Path) -> Found:
    found: Found = {}
    tops, twice = set(), []
    for file in files:
        if matched := FILE.fullmatch(str(file.path)):
            top, split, labels, name = matched.groups()
            tops.add(top or ".")
            other = found.setdefault((split + (labels or ""), name), file)
            if other is not file:
                twice.append((other.path, file.path))
    if len(tops) > 1:
        raise UserError(f"data.root={root} holds several data sets ({', '.join(sorted(tops))}); give one of them")
    if twice:
        raise UserError(f"data.root={root} holds '{twice[0][0]}' and '{twice[0][1]}'; keep one of them")
    return found


def _paired(found: Found, folder: str, root: Path) -> list[SceneFiles]:
    names = sorted(name for place, name in found if place == folder)
    if not names:
        raise UserError(f"data.root={root} holds no {folder} folder with images; the layout is {LAYOUT}")
    for place, name in sorted(found):
        for one, other in ((folder, f"{folder}annot"), (f"{folder}annot", folder)):
            if place == one and (other, name) not in found:
                raise UserError(
                    f"data.root={root}: '{found[place, name].path}' has no counterpart in {other}; "
                    f"the layout is {LAYOUT}"
                )
    return [SceneFiles(found[folder, name], found[f"{folder}annot", name]) for name in names]
