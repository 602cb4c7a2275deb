"""Files for hostile commands: functions that write them into the empty folder of a
command."""

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["Given", "bomb", "both", "files", "folders", "image", "link", "pictures"]
Given = Callable[[Path], None]
SIDE = 8  # of images, in pixels


def files(contents: Mapping[str, str | bytes]) -> Given:
    def write(folder: Path) -> None:
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(
                content.encode() if isinstance(content, str) else content
            )

    return write


def folders(*names: str) -> Given:
    return lambda folder: (
        [(folder / name).mkdir(parents=True, exist_ok=True) for name in names] and None
    )


def link(name: str, target: str) -> Given:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)

    return write


def both(*parts: Given) -> Given:
    return lambda folder: [part(folder) for part in parts] and None


def image(seed: int | None = 0, *, mode: str = "L") -> bytes:
    pixels = np.random.default_rng(seed).integers(
        0, 1 if seed is None else 256, (SIDE, SIDE, 3), np.uint8
    )
    picture, stream = Image.fromarray(pixels), io.BytesIO()
    picture.convert(mode).save(stream, "PNG")
    return stream.getvalue()


def bomb() -> bytes:
    content = bytearray(image())
    content[16:24] = struct.pack(">II", 40_000, 40_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def pictures(counts: Mapping[str, int], *, black: bool = False) -> Given:
    numbers = [(name, n) for name, count in counts.items() for n in range(count)]
    return files(
        {f"{name}/{n}.png": image(None if black else n) for name, n in numbers}
    )
