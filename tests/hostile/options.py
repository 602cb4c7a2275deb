"""Options and command lines meant to break the application."""

from tests.hostile.command import Command

COMMANDS = [
    Command("fly", ("unknown command 'fly'",)),
    Command("run", ("no experiment given",)),
]
