"""The command line of an experiment: options in, exit code out."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from unroll_jax.train.cli import parse
from unroll_jax.train.config.errors import UserError, on_command_line

__all__ = ["run_command"]


def run_command(
    work: Callable[[Any], None],
    config: type,
    arguments: list[str],
    program: str,
    spelled: Mapping[str, str],
) -> int:
    """Runs ``work`` on the options of a command line.

    Args:
      work: takes the options.
      config: dataclass of the options.
      arguments: of the command line.
      program: its name, for the help.
      spelled: names of options that messages spell in another way.

    Returns:
      The exit code, 2 for a mistake of the user.
    """
    try:
        with on_command_line(spelled):
            work(parse(config, arguments, program))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except SystemExit:
        return 0  # after the help
    return 0
