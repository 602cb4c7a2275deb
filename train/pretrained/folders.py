"""Where a pretrained encoder lies: a folder at hand, or a repository of the Hugging Face hub."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from train.errors import UserError

__all__ = ["FILES", "find_folder", "read_json", "weights_file"]

FILES = ("config.json", "model.safetensors", "tokenizer.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

# The owner may be missing: the hub's oldest models have none.
_REPOSITORY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?")


def find_folder(source: str, *, revision: str | None = None, log: Callable[[str], None] = print) -> Path:
    """The folder that holds `FILES`.

    Args:
      source: a folder, or a repository OWNER/NAME of the hub, which is downloaded once and kept where
        ``huggingface_hub`` keeps it.
      revision: branch, tag or commit of the repository; None is its main branch.
      log: takes lines of progress.

    Raises:
      UserError: if there is no such folder, and what is not a folder is no repository or cannot be downloaded.
    """
    folder = Path(source).expanduser()
    if source and folder.is_dir():  # not the folder one happens to be in
        return folder
    if source and folder.exists():
        raise UserError(f"pretrained={source} is a file; give the folder that holds {', '.join(FILES)}")
    if not _REPOSITORY.fullmatch(source):
        raise UserError(
            f"pretrained={source} is neither a folder nor a repository of the hub; give a folder that holds "
            f"{', '.join(FILES)}, or OWNER/NAME"
        )
    log(f"looking for {source} on the Hugging Face hub")
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(FILES)))
    except Exception as error:  # of huggingface_hub, its http client and the file system, which share no base
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"pretrained={source} is no folder here, and cannot be had from the Hugging Face hub ({reason}); where "
            f"there is no network, copy {', '.join(FILES)} into a folder and name that"
        ) from error


def weights_file(folder: Path) -> Path:
    """The file of weights in a folder.

    Raises:
      UserError: if there is none, or only what is not read: pickles, or weights split over many files.
    """
    file = folder / "model.safetensors"
    if file.is_file():
        return file
    if (folder / "model.safetensors.index.json").is_file():
        raise UserError(f"{folder} holds weights split over many files; save them as one, model.safetensors")
    if pickles := sorted({found.name for pattern in PICKLES for found in folder.glob(pattern)}):
        raise UserError(
            f"{folder} holds no model.safetensors but {', '.join(pickles)}: pickles can run any program when they are "
            "read, so they are refused; save the weights as safetensors where you trust them"
        )
    raise UserError(f"{file} does not exist; the folder must hold {', '.join(FILES)}")


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      UserError: if the file is missing, is not UTF-8 or holds something else.
    """
    if not file.is_file():
        raise UserError(f"{file} does not exist; the folder must hold {', '.join(FILES)}")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{file} is no JSON ({error}); copy it again") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} holds a {type(found).__name__} instead of an object; copy it again")
    return found
