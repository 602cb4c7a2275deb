"""What libraries print of an error that they raise as well."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["quiet_saves"]

CLOSED = "Event loop is closed"  # TensorStore, of each array of it that comes late


@contextlib.contextmanager
def quiet_saves() -> Iterator[None]:
    """While the context lasts, a failed save prints no tracebacks from Orbax's and TensorStore's threads.

    `CheckpointManager` raises the error where the save is waited for.
    """

    def speaks(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR or "orbax" not in record.pathname

    def hook(unraisable: Any) -> None:
        if CLOSED not in str(unraisable.exc_value):
            before(unraisable)

    logger, before = logging.getLogger("absl"), sys.unraisablehook
    logger.addFilter(speaks)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        logger.removeFilter(speaks)
