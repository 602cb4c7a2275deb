"""Data, tables, pictures and clips meant to break what reads them."""

from tests.hostile.command import Command

COMMANDS = [
    Command("prepare frames --from nowhere", ("nowhere does not exist",)),
]
