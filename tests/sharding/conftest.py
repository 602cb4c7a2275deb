"""Small clips in memory, as the tests of training have them."""

from tests.train.conftest import clips

__all__ = ["clips"]
