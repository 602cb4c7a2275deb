"""What TensorBoard would read of a run."""

from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event

__all__ = ["events"]


def events(path: Path) -> Iterator[Event]:
    """The events of a file: records of a length of 8 bytes, its checksum of 4, the event, its checksum."""
    content, place = path.read_bytes(), 0
    while place < len(content):
        length = int.from_bytes(content[place : place + 8], "little")
        yield Event.FromString(content[place + 12 : place + 12 + length])
        place += 16 + length
