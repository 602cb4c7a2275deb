"""The exceptions that the command line turns into a line: a mistake (exit code 2), and a request to end (0 or 130)."""

__all__ = ["Interrupted", "StorageError", "UserError", "one_line"]


class UserError(Exception):
    """Something the user can mend; the message is one line that names the argument, its value and the way out."""


class StorageError(UserError):
    """A disk that is full, read-only or forbidden: it says nothing of what was being computed."""


class Interrupted(BaseException):
    """The process was asked to end, and has saved what it did; the message says so in one line.

    No `Exception`: what takes every one of them for a damaged file must not take this for one.

    Args:
      message: the line.
      code: the exit code: 0 for SIGTERM, 130 for Ctrl-C.
    """

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


def one_line(error: Exception) -> str:
    """Returns the message of an error, in one line."""
    text = " ".join(str(error).split())
    return f"missing {text}" if isinstance(error, KeyError) else text or type(error).__name__
