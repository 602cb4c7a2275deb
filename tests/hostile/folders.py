"""Run folders, checkpoints and files of runs meant to break the commands that read them."""

from tests.hostile.command import Command

COMMANDS = [
    Command("evaluate nowhere", ("nowhere is no run folder",)),
]
