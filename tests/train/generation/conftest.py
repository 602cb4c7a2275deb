"""Language models of the tests of decoders."""

from tests.data.conftest import oracles
from tests.data.decoders.conftest import smollm2, write_folder

__all__ = ["oracles", "smollm2", "write_folder"]
