"""Where labelled texts may come from: the table of sources, and the choice of one."""

import dataclasses
import functools
from pathlib import Path
from typing import Literal

from train.data.source import Source, resolve_source
from train.data.text import imdb, mnli, sst2, table, verdicts
from train.data.text.originals import TextSet
from train.errors import UserError

__all__ = ["TEXTS", "TextConfig", "resolve_text"]


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Which texts to classify, and where they are kept once prepared."""

    source: Literal["verdicts", "imdb", "sst2", "mnli", "table"] = "verdicts"
    """verdicts: made-up sentences, no files needed. imdb, sst2, mnli: the published files, as folder or archive;
    downloaded where no root is given. table: a TSV, CSV or JSONL of your own."""
    root: str | None = None
    """Where the original files are; verdicts need none."""
    prepared: str | None = None
    """Folder for prepared data; by default $UNROLL_PREPARED, or ~/.cache/unroll_jax."""
    validation_share: float = 0.1
    """Share of the train texts held out for validation where the data come without it (imdb, mnli, a table without
    validation file), the same ones every time, as many of each class as its share in train. A table without test file
    gives as much for that."""
    text_column: str = "text"
    """Of a table: the column of the text, by name. A table without a header takes numbers for all columns, from 0."""
    label_column: str = "label"
    """Of a table: the column of the class, which is a name or a number."""
    second_column: str | None = None
    """Of a table: the column of the second text, where records are pairs."""


TEXTS: dict[str, Source[TextSet]] = {
    "verdicts": Source("", verdicts.fingerprint_verdicts, verdicts.open_verdicts),
    "imdb": Source(imdb.ROOT, imdb.fingerprint_imdb, imdb.open_imdb, imdb.DOWNLOAD),
    "sst2": Source(sst2.ROOT, sst2.fingerprint_sst2, sst2.open_sst2, sst2.DOWNLOAD),
    "mnli": Source(mnli.ROOT, mnli.fingerprint_mnli, mnli.open_mnli, mnli.DOWNLOAD),
    "table": Source(table.ROOT, table.fingerprint_table, table.open_table),
}


def resolve_text(config: TextConfig) -> tuple[Source[TextSet], Path | None]:
    """Returns the source that a config names, a table's with its columns, and its root; None where none is given.

    Raises:
      UserError: if there is no such source, the root is missing or superfluous, or columns are named for no table.
    """
    source, root = resolve_source(TEXTS, config)
    columns = table.Columns(config.text_column, config.label_column, config.second_column)
    if config.source != "table":
        for name, value, usual in zip(columns._fields, columns, table.Columns(), strict=True):
            if value != usual:
                raise UserError(f"data.{name}_column={value} is for data.source=table; leave it out")
        return source, root
    if len(set(columns)) < len(columns):
        names = ", ".join(column for column in columns if column is not None)
        raise UserError(f"the columns of a table must differ, got {names}")
    fingerprint = functools.partial(table.fingerprint_table, columns=columns)
    return source._replace(fingerprint=fingerprint, open=functools.partial(table.open_table, columns=columns)), root
