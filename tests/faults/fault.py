"""A fault: one text of one file replaced by another, and the tests that should fail then."""

from typing import NamedTuple

__all__ = ["Fault"]


class Fault(NamedTuple):
    """A small change that breaks a promise.

    Attributes:
      what: The fault in a few words; unique in its table.
      file: The changed file, relative to the repository.
      old: Text that occurs exactly once in the file.
      new: Its replacement.
      tests: Test files that should see the fault, separated by spaces; the quickest to fail comes first.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str
