"""The form of an error for users."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unroll_jax.train.config.errors import UserError


def assert_fails(read: Callable[[Path], Any], root: Path, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        read(root)
    assert "\n" not in str(caught.value)
    for word in (str(root), *words):
        assert word in str(caught.value)


def assert_names(
    error: type[Exception],
    call: Callable[..., Any],
    options: dict[str, Any],
    name: str = "",
) -> None:
    """Calls with options, the last one bad: one line that names it, or ``name``
    instead, and its value."""
    option, value = list(options.items())[-1]
    with pytest.raises(error) as caught:
        call(**options)
    message = str(caught.value)
    assert re.search(rf"\b{name or option}\b", message), f"{options}: {message}"
    assert "\n" not in message, f"{options}: {message}"
    if error is ValueError and not name and isinstance(value, int | float | str):
        assert str(value) in message, f"{options}: {message}"


@contextlib.contextmanager
def one_line(words: str, *others: str) -> Iterator[None]:
    with pytest.raises(UserError, match=words) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert all(other in message for other in others), message
