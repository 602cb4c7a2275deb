"""The three splits: cut from data without them, and recognised by names of folders and files."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..config.errors import UserError, option_text
from .files import root_error

SPLITS = ("train", "validation", "test")
SEED = 0  # of the choice of held-out or kept examples: the same in every run, for any seed of the run

# UCSD has Train and Test; ShanghaiTech and copies of Ped2 and Avenue as frames have training/frames and testing/frames;
# Avenue has training_videos and testing_videos.
NAMES = {
    "train": ("train", "training", "train_frames", "training_frames", "train_videos", "training_videos"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "test_frames", "testing_frames", "test_videos", "testing_videos"),
}
KNOWN = {name: split for split, names in NAMES.items() for name in names}
# Words that may mean a split, besides all that begin with train or test.
WORDS = {"trn": "train", "tst": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "valset", "dev", "eval", "evaluation", "holdout", "heldout"), "validation"
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def hold_out(labels: np.ndarray, share: float, names: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Divides examples so that each class has the same share in both parts, up to rounding.

    Returns:
      The numbers of examples that stay and of those held out, ascending; functions of labels and share only.
    """
    from sklearn.model_selection import train_test_split  # takes a second, and is needed only to prepare

    classes, counts = np.unique_counts(labels)
    num_held_out = round(share * len(labels))
    if (single := classes[counts < 2]).size:
        raise ValueError(f"the class {names[single[0]]!r} has a single example" if names else "there is one only")
    if min(num_held_out, len(labels) - num_held_out) < len(counts):
        raise ValueError(
            f"a share of {share:g} holds out {num_held_out} of {len(labels)} examples; each split needs at least one "
            f"of each of the {len(counts)} classes"
        )
    numbers = np.arange(len(labels))
    stay, held_out = train_test_split(numbers, test_size=num_held_out, stratify=labels, random_state=SEED)
    return np.sort(stay), np.sort(held_out)


def tenth(count: int) -> int:
    """Returns a tenth of a count, at least one: the default number of held-out things."""
    return max(1, round(count / 10))


def check_share(share: float) -> None:
    """Checks the share of train that is held out to validate."""
    if not 0.0 < share < 1.0:
        raise UserError(f"{option_text('data.validation_share')} must be in (0, 1), got {share}")


def cut_from_train(
    labels: np.ndarray, share: float, what: str, instead: str, names: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Divides the examples of train by `hold_out`; ``instead`` would make that needless, ``names`` are of classes."""
    try:
        return hold_out(labels, share, names)
    except ValueError as error:
        raise UserError(
            f"{option_text('data.validation_share', f'{share:g}')} cannot be cut from the train {what} ({error}); "
            "give more of them, "
            f"another share, or a {instead}"
        ) from error


def check_no_split(path: PurePosixPath, root: Path, layout: str) -> None:
    """Checks that a path that is not read as a split does not look like one: held-out examples would be trained on."""
    if split := looks_like(path):
        raise root_error(
            root, f": '{path}' looks like {split} under an unknown name; the layout is {layout}; rename it if it is not"
        )


def looks_like(path: PurePosixPath) -> str | None:
    """Returns the split that the first such word of a path may mean; None for none."""
    words = (word.lower() for part in path.parts for word in WORD.findall(part))
    meanings = (next((name for name in ("train", "test") if word.startswith(name)), WORDS.get(word)) for word in words)
    return next((split for split in meanings if split), None)


def keep_examples(data: Any, config: Any) -> None:
    """Keeps as many examples of each split as `train_examples`, `validation_examples` and `test_examples` tell."""
    for split in SPLITS:
        count = getattr(config, f"{split}_examples", None)
        try:
            if count is not None:
                data.keep(split, count)
        except ValueError as error:
            raise UserError(f"{option_text(f'{split}_examples')} does not fit the data: {error}") from error
