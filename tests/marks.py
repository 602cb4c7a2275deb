"""Marks that the tests of the library share."""

import pytest

__all__ = ["in_float64", "nightly", "types_unchecked"]

in_float64 = pytest.mark.usefixtures("x64")
nightly = pytest.mark.nightly
# as users run the library: its own messages are under test
types_unchecked = pytest.mark.usefixtures("unchecked")
