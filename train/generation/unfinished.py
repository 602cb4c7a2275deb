"""Answers so far, a line each, beside the file that takes them all: what was interrupted goes on from there."""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..config.errors import UserError, one_line
from ..config.fields import differences
from ..data.conversations import Prompt
from ..system.digest import digest
from ..system.files import strict_json
from ..task import Row
from .answers import Answer, Settings
from .opening import Opened

FREE = ("batch",)  # settings that answers do not depend on, but for round-off


class Unfinished:
    """A file of lines: what the answers are of, and then an answer each, in whatever order they come.

    Args:
      out: the file that takes all answers in the end.
      about: JSON values; a file that says otherwise is refused.
    """

    def __init__(self, out: Path, about: Row) -> None:
        self.path, self._about = out.with_name(f"{out.stem}.unfinished.jsonl"), about

    def start(self, prompts: Sequence[Prompt]) -> dict[int, Answer]:
        """The answers so far, by the place of their prompt; a line that a kill cut short is taken off the file.

        Raises:
          UserError: if the file is of another command, or damaged.
          OSError: if it cannot be read or written.
        """
        if not self.path.exists():
            return {}
        *lines, rest = self.path.read_bytes().split(b"\n")
        if rest:
            os.truncate(self.path, sum(len(line) + 1 for line in lines))
        rows = [self._parsed(line, number) for number, line in enumerate(lines, start=1)]
        if len(rows) <= 1:
            self.path.write_bytes(b"")  # no answer, of whatever command
        elif changed := differences(rows[0]["about"], self._about):
            raise UserError(
                f"{self.path} holds answers of another command ({'; '.join(changed)}); give that one again, delete the "
                "file, or pass another --out"
            )
        if outside := [row["place"] for row in rows[1:] if not 0 <= row["place"] < len(prompts)]:
            raise UserError(
                f"{self.path} is damaged (it answers prompt {outside[0]} of {len(prompts)}); delete it, or pass "
                "another --out"
            )
        return {row["place"]: Answer(prompts[row["place"]], row["text"], row["tokens"]) for row in rows[1:]}

    def add(self, answers: Mapping[int, Answer]) -> None:
        """Writes answers behind those so far, onto the disk; the first ones make the file."""
        rows = [{"place": place, "text": one.text, "tokens": one.tokens} for place, one in answers.items()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            before = [] if file.tell() else [{"about": self._about}]
            file.write(b"".join(map(_line, before + rows)))
            file.flush()
            os.fsync(file.fileno())

    def end(self) -> None:
        """Deletes the file, as all answers are in another."""
        self.path.unlink(missing_ok=True)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = strict_json(line)
            wanted = {"about"} if number == 1 else {"place", "text", "tokens"}
            if set(row) != wanted:
                raise ValueError(f"it holds {', '.join(row)} instead of {', '.join(sorted(wanted))}")
            kinds = {"about": dict, "place": int, "text": str, "tokens": list}
            if wrong := [name for name, value in row.items() if not isinstance(value, kinds[name])]:
                raise ValueError(f"{wrong[0]} is {row[wrong[0]]!r}")
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self.path} is damaged in line {number} ({one_line(error)}); delete it, or pass another --out"
            ) from error
        return row


def about(opened: Opened, prompts: Sequence[Prompt], settings: Settings) -> Row:
    """All that answers depend on, as JSON values: prompts, weights and tokenizer by their checksums; the draft is
    chosen already, see `answers.drafted`."""
    if settings.temperature == 0.0:  # drafts change no greedy answer
        settings = settings._replace(exit_layer=None, draft_length=None)
    told = json.dumps([[prompt.instruction, prompt.input, prompt.dataset] for prompt in prompts]).encode()
    return {
        "prompts": {"count": len(prompts), "checksum": zlib.crc32(told)},
        "weights": digest(opened.params, {})[0],
        "dtype": str(np.result_type(*{leaf.dtype for leaf in jax.tree.leaves(opened.params)})),
        "tokenizer": opened.tokenizer.checksum,
        "template": opened.template,
        **{name: value for name, value in settings._asdict().items() if name not in FREE},
    }


def _line(value: Row) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"
