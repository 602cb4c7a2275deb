"""Which split each clip belongs to: as folders named after splits say, or dealt in order where there are none."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from train.data.clips import SPLITS, split_sizes
from train.data.split_folders import KNOWN, looks_like
from train.errors import UserError

__all__ = ["LAYOUT", "natural", "split_clips", "stated_split"]

LAYOUT = (
    "ROOT/train/CLIP/001.png, ROOT/test/CLIP/001.png and if there is one ROOT/validation/CLIP/001.png, or one folder a "
    "clip without splits"
)


def split_clips(
    names: Sequence[PurePosixPath], *, root: Path, log: Callable[[str], None] = print
) -> dict[str, list[PurePosixPath]]:
    """Deals clips to the splits: as folders say, without a validation folder the last tenth of train; or 80/10/10.

    Args:
      names: Paths of the clips below the root, in the order that they are dealt in.
      root: The root.
      log: Takes a line where clips lie in the folder of no split, beside others that do.

    Raises:
      UserError: for folders that look like splits and are not known, and for too few clips.
    """
    stated = {name: stated_split(name, root=root) for name in names}
    unstated = [name for name in names if stated[name] is None]
    if len(unstated) == len(names):
        _refuse_look_alikes(names, root, unless_all_agree=True)
        return _dealt(list(names), root)
    _refuse_look_alikes(unstated, root, unless_all_agree=False)
    if unstated:
        log(f"  {len(unstated)} clip(s) lie in the folder of no split and are passed over, '{unstated[0]}' for one")
    return _as_stated({split: [name for name in names if stated[name] == split] for split in SPLITS}, root)


def stated_split(clip: PurePosixPath, *, root: Path) -> str | None:
    """The split that the folders above a clip say, or the clip's own name where these say nothing.

    Raises:
      UserError: if folders inside each other say different ones.
    """
    above = {KNOWN[part.lower()] for part in clip.parent.parts if part.lower() in KNOWN}
    if len(above) > 1:
        raise UserError(f"data.root={root}: clip '{clip}' lies in folders of {' and '.join(sorted(above))}; keep one")
    return above.pop() if above else KNOWN.get(clip.stem.lower())


def natural(path: PurePosixPath) -> list[str | int]:
    """What puts paths in natural order, 2 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def _dealt(names: list[PurePosixPath], root: Path) -> dict[str, list[PurePosixPath]]:
    if len(names) < len(SPLITS):
        raise UserError(
            f"data.root={root} holds {len(names)} clip(s); give at least 3, one for each of {', '.join(SPLITS)}"
        )
    sizes = split_sizes(len(names))
    held_out = sizes["train"] + sizes["validation"]
    return {"train": names[: sizes["train"]], "validation": names[sizes["train"] : held_out], "test": names[held_out:]}


def _as_stated(stated: dict[str, list[PurePosixPath]], root: Path) -> dict[str, list[PurePosixPath]]:
    train, validation, test = (stated[split] for split in SPLITS)
    least = 1 if validation else 2
    if len(train) < least or not test:
        raise UserError(
            f"data.root={root} holds {len(train)} Train and {len(test)} Test clip(s); give at least {least} and 1, "
            "or one folder a clip without Train and Test"
        )
    if validation:
        return stated
    num_train = len(train) - max(1, round(len(train) / 10))
    return {"train": train[:num_train], "validation": train[num_train:], "test": test}


def _refuse_look_alikes(names: Sequence[PurePosixPath], root: Path, *, unless_all_agree: bool) -> None:
    """Refuses names that may mean splits; where all clips agree, as in the folder of one split, they divide nothing."""
    looks = {name: looks_like(name) for name in names}
    if unless_all_agree and len(set(looks.values())) <= 1:
        return
    examples = {split: name for name, split in reversed(looks.items()) if split}
    if examples:
        shown = " and ".join(f"'{examples[split]}' like {split}" for split in SPLITS if split in examples)
        raise UserError(
            f"data.root={root}: folders look like splits, but not as any layout names them: {shown}; lay clips out as "
            f"{LAYOUT}, and rename folders that are no splits"
        )
