"""Folders of pretrained weights as Hugging Face lays them out, at hand or from its hub."""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..config.errors import UserError, one_line
from ..system.files import expanded
from .files import Log

FILES = ("config.json", "model.safetensors", "tokenizer.json")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
INDEX = "model.safetensors.index.json"
TOKENIZER_WAY_OUT = "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) writes it"
# The owner may be missing: the hub's oldest models have none.
REPOSITORY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?")


def find_folder(
    source: str,
    *,
    files: Sequence[str] = FILES,
    revision: str | None = None,
    option: str = "pretrained",
    log: Log = print,
) -> Path:
    """The folder that holds some files: one at hand, or a repository of the hub, which is downloaded once."""
    folder = expanded(source, option)
    if source and folder.is_dir():  # not the folder one happens to be in
        if revision is not None:
            raise UserError(
                f"revision={revision} is of a repository of the hub, but {source} is a folder; leave it out"
            )
        return folder
    if source and folder.exists():
        raise UserError(f"{option}={source} is a file; give the folder that holds {', '.join(files)}")
    if not may_be_repository(source):
        raise UserError(
            f"{option}={source} is neither a folder nor a repository of the hub; give a folder that holds "
            f"{', '.join(files)}, or OWNER/NAME"
        )
    log(f"looking for {source} on the Hugging Face hub")
    from huggingface_hub import snapshot_download  # here, as what is at hand needs no hub

    try:
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # of huggingface_hub, its http client and the file system, which share no base
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{option}={source} is no folder here, and cannot be had from the Hugging Face hub ({reason}); where "
            f"there is no network, copy {', '.join(files)} into a folder and name that"
        ) from error
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise missing_file(f"{option}={source}", missing[0], _listed(source, revision), files)
    return folder


def may_be_repository(source: str) -> bool:
    """Returns whether a source has the form of a repository of the hub, OWNER/NAME or NAME."""
    return REPOSITORY.fullmatch(source) is not None


def weights_file(folder: Path, *, files: Sequence[str] = FILES) -> Path:
    """The file of weights in a folder; pickles, and weights split over many files, are not read."""
    file = folder / "model.safetensors"
    if file.is_file():
        return file
    raise missing_file(str(folder), file.name, [path.name for path in folder.iterdir()], files)


def read_json(file: Path, *, files: Sequence[str] = FILES) -> dict[str, Any]:
    """Reads a JSON object out of a folder that holds some files."""
    if not file.is_file():
        raise missing_file(str(file.parent), file.name, [], files)
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{file} is no JSON ({error}); copy it again") from error
    if not isinstance(contents, dict):
        raise UserError(f"{file} holds a {type(contents).__name__} instead of an object; copy it again")
    return contents


def missing_file(where: str, name: str, present: Sequence[str], files: Sequence[str] = FILES) -> UserError:
    """Returns the error for a folder or repository without one of the files, by what it has in its place."""
    if name == "tokenizer.json":
        return UserError(f"{where} holds no {name}; {TOKENIZER_WAY_OUT}")
    if name == "model.safetensors" and INDEX in present:
        return UserError(f"{where} holds weights split over many files; save them as one, {name}")
    pickles = sorted(entry for entry in present if entry.endswith(PICKLES))
    if name == "model.safetensors" and pickles:
        return UserError(
            f"{where} holds no {name} but {', '.join(pickles)}: pickles can run any program when they are read, so "
            "they are refused; save the weights as safetensors where you trust them"
        )
    return UserError(f"{where} holds no {name}; it must hold {', '.join(files)}")


def _listed(repository: str, revision: str | None) -> list[str]:
    """Names of all files of a repository; none where the hub cannot be asked."""
    from huggingface_hub import list_repo_files

    try:
        return list_repo_files(repository, revision=revision)
    except Exception:  # as above; what is missing can be told without
        return []


@contextlib.contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    """Opens a safetensors file; what cannot be read is refused in one line."""
    from safetensors import SafetensorError, safe_open  # here, as reading a configuration needs neither

    try:
        opened: Any = safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read as safetensors ({one_line(error)}); copy it again") from error
    with opened:
        yield opened
