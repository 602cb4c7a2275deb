"""The three splits: how they are cut where data come without them, and which split the name of a folder says."""

import re
from pathlib import PurePosixPath

import numpy as np

from ..config.errors import UserError

SPLITS = ("train", "validation", "test")
SEED = 0  # of the choice of what is held out or kept: the same one in every run, whatever the run's own seed

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


def hold_out(labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Deals examples to train and validation so that each class has the same share in both, up to rounding.

    Returns the numbers of those that stay and of those held out, ascending; they depend on labels and share alone.
    """
    from sklearn.model_selection import train_test_split  # takes a second, and is needed only to prepare

    counts = np.unique_counts(labels).counts
    num_held_out = round(share * len(labels))
    if counts.min() < 2:
        raise ValueError("a class has a single example")
    if min(num_held_out, len(labels) - num_held_out) < len(counts):
        raise ValueError(
            f"a share of {share:g} holds out {num_held_out} of {len(labels)} examples; each split needs at least one "
            f"of each of the {len(counts)} classes"
        )
    numbers = np.arange(len(labels))
    stay, held_out = train_test_split(numbers, test_size=num_held_out, stratify=labels, random_state=SEED)
    return np.sort(stay), np.sort(held_out)


def tenth(count: int) -> int:
    """Returns the number of ``count`` things that are held out by default: a tenth, at least one."""
    return max(1, round(count / 10))


def check_share(share: float) -> None:
    """Refuses a share of train to validate on that leaves nothing for one of them."""
    if not 0.0 < share < 1.0:
        raise UserError(f"data.validation_share must be in (0, 1), got {share}")


def cut_from_train(labels: np.ndarray, share: float, what: str, instead: str) -> tuple[np.ndarray, np.ndarray]:
    """Deals the examples of train as `hold_out` does; ``instead`` is what would make that needless."""
    try:
        return hold_out(labels, share)
    except ValueError as error:
        raise UserError(
            f"data.validation_share={share:g} cannot be cut from the train {what} ({error}); give more of them, "
            f"another share, or a {instead}"
        ) from error


def looks_like(path: PurePosixPath) -> str | None:
    """The split that the first telling word of a path may mean; None where there is none."""
    words = (word.lower() for part in path.parts for word in WORD.findall(part))
    meanings = (next((name for name in ("train", "test") if word.startswith(name)), WORDS.get(word)) for word in words)
    return next((split for split in meanings if split), None)
