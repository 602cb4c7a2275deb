"""Language models of the tests of decoders."""

from tests.data.decoders.conftest import oracles, smollm2, write_folder

__all__ = ["oracles", "smollm2", "write_folder"]
