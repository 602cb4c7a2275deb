"""SST-2 as GLUE lays it out: glue/SST-2/{train,dev,test}.tsv, one sentence a line."""

from collections.abc import Iterator
from pathlib import Path

from train.data.text.labelled import UNLABELLED, Labelled, checked, decoded
from train.errors import UserError

__all__ = ["CLASSES", "read_sst2", "sst2_files"]

CLASSES = ("negative", "positive")
FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
HEADER = ["sentence", "label"]
# GLUE gives its test sentences out without labels, under this header.
UNLABELLED_HEADER = ["index", "sentence"]


def sst2_files(root: Path) -> list[Path]:
    """The three files below a root.

    Raises:
      UserError: if one is missing.
    """
    files = [root / "glue" / "SST-2" / name for name in FILES.values()]
    for file in files:
        if not file.is_file():
            raise UserError(
                f"{file} does not exist; data.root must hold SST-2 in the layout of GLUE: "
                f"glue/SST-2/{', glue/SST-2/'.join(FILES.values())}, with sentence<TAB>label and a header"
            )
    return files


def read_sst2(root: Path) -> dict[str, list[Labelled]]:
    """Reads every split.

    Raises:
      UserError: for a file that is missing, empty, not UTF-8 or without its header, and for a line without a sentence
        or whose label is not 0 or 1; it names file and line.
    """
    splits = {split: list(_read(file)) for split, file in zip(FILES, sst2_files(root), strict=True)}
    for split, file in FILES.items():
        if not splits[split]:
            raise UserError(f"{root / 'glue' / 'SST-2' / file} holds no sentences; copy the original again")
    return splits


def _read(file: Path) -> Iterator[Labelled]:
    # Lines end at a newline alone: sentences may hold the other characters that `splitlines` splits at.
    header, *lines = decoded(file.read_bytes(), where=str(file)).removesuffix("\n").split("\n")
    columns = header.rstrip("\r").split("\t")
    if columns not in (HEADER, UNLABELLED_HEADER):
        raise UserError(f"{file} must begin with the header sentence<TAB>label, got {header[:60]!r}")
    for number, line in enumerate(lines, start=2):
        where = f"{file} line {number}"
        fields = line.rstrip("\r").split("\t")
        if len(fields) != len(columns):
            raise UserError(f"{where} has {len(fields)} field(s) between tabs instead of {len(columns)}; mend the line")
        sentence = fields[columns.index("sentence")]
        label = _label(fields[1], where) if columns == HEADER else UNLABELLED
        yield checked(sentence, label, where=where)


def _label(field: str, where: str) -> int:
    if field not in ("0", "1"):
        raise UserError(f"{where} has label {field!r}; a label must be 0 (negative) or 1 (positive)")
    return int(field)
