"""Names that data sets give to their splits, and names that may mean a split."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

__all__ = ["KNOWN", "looks_like"]

# As published: UCSD has Train and Test; ShanghaiTech and the frames of Ped2 and Avenue that are handed round have
# training/frames and testing/frames; Avenue itself has training_videos and testing_videos.
NAMES = {
    "train": ("train", "training", "train_frames", "training_frames", "train_videos", "training_videos"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "test_frames", "testing_frames", "test_videos", "testing_videos"),
}
KNOWN = {name: split for split, names in NAMES.items() for name in names}
# Words of a name that may mean a split, beside all that begin with train or test.
WORDS = {"trn": "train", "tst": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "valset", "dev", "eval", "evaluation", "holdout", "heldout"), "validation"
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def looks_like(path: PurePosixPath) -> str | None:
    """The split that the first telling word of a path may mean; None where there is none."""
    return next((split for split in map(_meaning, _words(path)) if split), None)


def _words(path: PurePosixPath) -> Iterable[str]:
    return (word.lower() for part in path.parts for word in WORD.findall(part))


def _meaning(word: str) -> str | None:
    return next((split for split in ("train", "test") if word.startswith(split)), WORDS.get(word))
