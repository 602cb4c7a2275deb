"""Where the real texts lie that some figures are drawn from."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """The folder of real data files."""
    if "UNROLL_DATA" not in os.environ:
        pytest.skip("UNROLL_DATA does not name the folder of real data")
    return Path(os.environ["UNROLL_DATA"])
