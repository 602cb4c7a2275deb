"""Where a pretrained encoder lies: a folder at hand, or a repository of the Hugging Face hub."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.home import expanded

__all__ = ["FILES", "find_folder", "may_be_repository", "missing_file", "read_json", "weights_file"]

FILES = ("config.json", "model.safetensors", "tokenizer.json")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
INDEX = "model.safetensors.index.json"
TOKENIZER_WAY_OUT = "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) writes it"

# The owner may be missing: the hub's oldest models have none.
_REPOSITORY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?")


def find_folder(
    source: str, *, revision: str | None = None, option: str = "pretrained", log: Callable[[str], None] = print
) -> Path:
    """The folder that holds `FILES`.

    Args:
      source: a folder, or a repository OWNER/NAME of the hub, which is downloaded once and kept where
        ``huggingface_hub`` keeps it.
      revision: branch, tag or commit of the repository; None is its main branch.
      option: what errors call the source.
      log: takes lines of progress.

    Raises:
      UserError: if there is no such folder, and what is not a folder is no repository, cannot be downloaded, or lacks
        one of the files; if there is one, and a revision.
    """
    folder = expanded(source, option)
    if source and folder.is_dir():  # not the folder one happens to be in
        if revision is not None:
            raise UserError(
                f"revision={revision} is of a repository of the hub, but {source} is a folder; leave it out"
            )
        return folder
    if source and folder.exists():
        raise UserError(f"{option}={source} is a file; give the folder that holds {', '.join(FILES)}")
    if not may_be_repository(source):
        raise UserError(
            f"{option}={source} is neither a folder nor a repository of the hub; give a folder that holds "
            f"{', '.join(FILES)}, or OWNER/NAME"
        )
    log(f"looking for {source} on the Hugging Face hub")
    from huggingface_hub import snapshot_download  # here, as what is at hand needs no hub

    try:
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=list(FILES)))
    except Exception as error:  # of huggingface_hub, its http client and the file system, which share no base
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{option}={source} is no folder here, and cannot be had from the Hugging Face hub ({reason}); where "
            f"there is no network, copy {', '.join(FILES)} into a folder and name that"
        ) from error
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise missing_file(f"{option}={source}", missing[0], _listed(source, revision))
    return folder


def may_be_repository(source: str) -> bool:
    """Whether something has the form of a repository of the hub, OWNER/NAME or NAME."""
    return _REPOSITORY.fullmatch(source) is not None


def weights_file(folder: Path) -> Path:
    """The file of weights in a folder.

    Raises:
      UserError: if there is none, or only what is not read: pickles, or weights split over many files.
    """
    file = folder / "model.safetensors"
    if file.is_file():
        return file
    raise missing_file(str(folder), file.name, [found.name for found in folder.iterdir()])


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      UserError: if the file is missing, is not UTF-8 or holds something else.
    """
    if not file.is_file():
        raise missing_file(str(file.parent), file.name, [])
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{file} is no JSON ({error}); copy it again") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} holds a {type(found).__name__} instead of an object; copy it again")
    return found


def _listed(repository: str, revision: str | None) -> list[str]:
    """Names of all files of a repository; none where the hub cannot be asked."""
    from huggingface_hub import list_repo_files

    try:
        return list_repo_files(repository, revision=revision)
    except Exception:  # as above; what is missing can be told without
        return []


def missing_file(where: str, name: str, present: Sequence[str]) -> UserError:
    """What is said of a folder or repository without one of `FILES`, by what it has in its place."""
    if name == "tokenizer.json":
        return UserError(f"{where} holds no {name}; {TOKENIZER_WAY_OUT}")
    if name == "model.safetensors" and INDEX in present:
        return UserError(f"{where} holds weights split over many files; save them as one, {name}")
    pickles = sorted(found for found in present if found.endswith(PICKLES))
    if name == "model.safetensors" and pickles:
        return UserError(
            f"{where} holds no {name} but {', '.join(pickles)}: pickles can run any program when they are read, so "
            "they are refused; save the weights as safetensors where you trust them"
        )
    return UserError(f"{where} holds no {name}; it must hold {', '.join(FILES)}")
