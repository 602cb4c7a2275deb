"""The one exception that the command line turns into a line on stderr and exit code 2."""

__all__ = ["UserError"]


class UserError(Exception):
    """Something the user can mend; the message is one line that names the argument, its value and the way out."""
