"""The three splits of every data set, and how validation is cut from train where the data come without it."""

import numpy as np

__all__ = ["SEED", "SPLITS", "hold_out"]

SPLITS = ("train", "validation", "test")
SEED = 0  # of the choice of what is held out or kept: the same one in every run, whatever the run's own seed


def hold_out(labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Deals examples to train and validation so that each class has the same share in both, up to rounding.

    The choice is fixed: it depends on the labels in their order and on the share alone.

    Args:
      labels: Class of each example, integers (n,).
      share: Share of the examples to hold out, in (0, 1).

    Returns:
      The numbers of the examples that stay and of those held out, both ascending.

    Raises:
      ValueError: if a class has fewer than two examples, or the share leaves a split with fewer examples than classes.
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
