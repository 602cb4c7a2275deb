"""The options that a message names, and those that a command has."""

import contextlib
import functools
import io
import re

from unroll_jax.train.__main__ import main
from unroll_jax.train.main import MEMBERSHIP

__all__ = ["OPTION", "options_of", "strangers"]

OPTION = re.compile(r"(?<![\w=-])--([a-z][\w.-]*\w)")
QUOTED = re.compile(r"`[^`]*`")  # a command to give, which has options of its own
NAMED = ("run", "plan", "sweep")  # commands whose options depend on the word behind them


def strangers(line: str, message: str) -> set[str]:
    """Options that a message names, which neither the command has that showed it nor its user typed."""
    words = line.split()
    typed = set(OPTION.findall(line.replace("=", " ")))
    commands = [
        word
        for word in words
        if word in (*NAMED, "evaluate", "predict", "generate", "export", "report", "prepare", "launch")
    ]
    known = {option.removeprefix("--") for option in MEMBERSHIP}
    if commands:
        command = commands[-1] if commands[0] == "launch" else commands[0]  # behind it, words may name folders
        behind = words[words.index(command) + 1 :]
        known |= options_of(command, behind[0] if command in NAMED and behind else "")
    return set(OPTION.findall(QUOTED.sub("", message))) - typed - known - {"help"}


@functools.cache
def options_of(command: str, name: str) -> set[str]:
    """The options in a command's help."""
    words = [command, name, "--help"] if name else [command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        main(words)
    return set(OPTION.findall(shown.getvalue()))
