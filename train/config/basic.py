"""The mark of options that `--help` shows; `--help-all` shows the others too."""

from typing import Annotated, TypeVar

__all__ = ["BASIC", "Basic"]

T = TypeVar("T")
BASIC = "basic"
Basic = Annotated[T, BASIC]
