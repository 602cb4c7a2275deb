"""Options in messages, as they are typed at a command: the readers of data know them as fields of a configuration."""

import re

__all__ = ["as_typed"]

DATA = "root|source|prepared|validation_share|reduction|text_column|label_column|second_column"
FIELD = re.compile(
    rf"(?<![\w./-])(?:--)?(data\.(?:{DATA})\b|(?:model\.pretrained|model\.embeddings|embeddings|revision)(?==))(=?)"
)
COMMANDS = ("run", "plan", "search", "figures", "prepare")  # those that take options of data
# Where a command takes an option by another name than --FIELD.
NAMES = {
    "prepare": {"data.root": "--from", "data.prepared": "UNROLL_PREPARED", "data.source": "prepare"},
    "figures": {"embeddings": "--embeddings"},
    "": {"embeddings": "--model.embeddings", "revision": "--model.revision"},
}


def as_typed(message: str, command: str) -> str:
    """A message with data.FIELD=VALUE as ``command`` takes it.

    Example:
      >>> as_typed("data.root=clips is empty; see data.source=file", "run")
      '--data.root clips is empty; see --data.source file'
      >>> as_typed("data.root=clips is empty; see data.source=file", "prepare")
      '--from clips is empty; see prepare file'
    """

    if command not in COMMANDS or message.startswith("Unrecognized"):
        # Data are those of a run's config.json; or the option is quoted.
        return message.replace("data.prepared or UNROLL_PREPARED", "UNROLL_PREPARED")

    def option(found: re.Match[str]) -> str:
        field, value = found.groups()
        plain = field.removeprefix("data.") if command == "prepare" else field
        name = (NAMES[""] | NAMES.get(command, {})).get(field, f"--{plain.replace('_', '-')}")
        return f"{name} " if value else name

    return FIELD.sub(option, message).replace("UNROLL_PREPARED or UNROLL_PREPARED", "UNROLL_PREPARED")
