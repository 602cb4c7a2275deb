"""Keep the machine's folders out of what a report shows."""

import re
from typing import Any

__all__ = ["without_folders"]

FOLDERS = re.compile(r"(?<![\w:/.~])~?/(?:[^\s/'\"]+/)*([^\s/'\"]+)/?")


def without_folders(value: Any) -> Any:
    """The value with every absolute path in its strings, however deep, cut to the path's last part."""
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return FOLDERS.sub(r"\1", value) if isinstance(value, str) else value
