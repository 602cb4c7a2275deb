"""What an error that the user can mend looks like."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unroll_jax.train.config.errors import UserError


def assert_fails(read: Callable[[Path], Any], root: Path, *words: str) -> None:
    """Asserts that reading a root ends in a one-line error with these words and the root's path."""
    with pytest.raises(UserError) as caught:
        read(root)
    assert "\n" not in str(caught.value)
    for word in (str(root), *words):
        assert word in str(caught.value)
