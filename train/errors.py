"""The exceptions that the command line turns into a line: a mistake (exit code 2), and a request to end (0)."""

__all__ = ["Interrupted", "UserError"]


class UserError(Exception):
    """Something the user can mend; the message is one line that names the argument, its value and the way out."""


class Interrupted(Exception):  # noqa: N818 (no error)
    """The process was asked to end, and has saved what it did; the message says so in one line."""
