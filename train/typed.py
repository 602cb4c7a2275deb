"""Options in messages, as they are typed at a command: the readers of data know them as fields of a configuration."""

import re

__all__ = ["as_typed"]

FIELD = re.compile(r"(?<![\w./-])data\.([a-z_]+)(=?)")
AT_PREPARE = {"root": "--from", "prepared": "UNROLL_PREPARED"}  # it takes its source by position, and no data.prepared


def as_typed(message: str, command: str) -> str:
    """A message with data.FIELD=VALUE as ``command`` takes it.

    Example:
      >>> as_typed("data.root=clips is empty; see data.source=file", "run")
      '--data.root clips is empty; see --data.source file'
      >>> as_typed("data.root=clips is empty; see data.source=file", "prepare")
      '--from clips is empty; see prepare file'
    """

    def option(found: re.Match[str]) -> str:
        field, value = found.groups()
        name = f"--data.{field.replace('_', '-')}"
        if command == "prepare":
            name = "prepare" if field == "source" else AT_PREPARE.get(field, f"--{field.replace('_', '-')}")
        return f"{name} " if value else name

    typed = FIELD.sub(option, message)
    return typed.replace("UNROLL_PREPARED or UNROLL_PREPARED", "UNROLL_PREPARED")
