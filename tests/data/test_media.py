"""Files are pictures and videos by their contents, upright as players show them, and
none vanishes in silence."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from tests.data.conftest import write_pictures, write_video
from tests.errors import assert_fails
from unroll_jax.train.data.clips import is_video
from unroll_jax.train.data.pictures import is_picture, picture_of
from unroll_jax.train.tasks.video.data import frames_of

CLASSES = {"train/cat": 10, "train/dog": 10, "test/cat": 2, "test/dog": 2}
# By EXIF orientation: the upright picture; for videos, a, b, c, d of the matrix from
# (x, y) to (ax + cy, bx + dy).
UPRIGHT = {
    1: (lambda stored: stored, (1, 0, 0, 1)),
    2: (np.fliplr, (-1, 0, 0, 1)),
    3: (lambda stored: np.rot90(stored, 2), (-1, 0, 0, -1)),
    4: (np.flipud, (1, 0, 0, -1)),
    5: (np.transpose, (0, 1, 1, 0)),
    6: (lambda stored: np.rot90(stored, -1), (0, 1, -1, 0)),
    7: (lambda stored: np.rot90(stored, 2).T, (0, -1, -1, 0)),
    8: (lambda stored: np.rot90(stored, 1), (0, -1, 1, 0)),
}
NAMED = [
    (".jfif", None),
    (".scan", None),
    ("", None),
    (".webp", "WEBP"),
    (".gif", "WEBP"),
    ("", "PPM"),
]


def test_pictures_are_read_whatever_they_are_called(opened, tmp_path):
    root = write_pictures(tmp_path / "images", CLASSES | {"test/dog": len(NAMED)})
    expected = opened("image_folder", root).whole("test")
    for path, (suffix, kind) in zip(
        sorted(root.glob("test/dog/*.png")), NAMED, strict=True
    ):
        if kind is not None:
            with Image.open(path) as picture:
                picture.save(
                    path, kind, **({"lossless": True} if kind == "WEBP" else {})
                )
        path.rename(path.with_suffix(suffix))
    for actual, wanted in zip(
        opened("image_folder", root).whole("test"), expected, strict=True
    ):
        assert_array_equal(actual, wanted)


def test_a_gif_is_a_picture_or_a_video(tmp_path):
    frames = [
        Image.fromarray(np.full((32, 32), 10 * number, np.uint8))
        for number in range(21)
    ]
    for name, count in (("still.gif", 1), ("moves.gif", 5), ("moves", 21)):
        frames[0].save(
            tmp_path / name, "GIF", save_all=count > 1, append_images=frames[1:count]
        )
        assert is_picture(tmp_path / name) == (count == 1)
        assert is_video(tmp_path / name)
        assert frames_of(tmp_path / name)[0].shape == (count, 160, 160)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXTINF:1,\nb.avi\n",
        "ffconcat version 1.0\nfile b.avi\n",
        "P1 text",
        "",
    ],
)
def test_a_text_is_neither_picture_nor_video(tmp_path, text):
    write_video(tmp_path / "b.avi", 21)
    for name in ("a", "a.txt", "a.m3u8", "a.nfo"):
        (tmp_path / name).write_text(text)
        assert not is_picture(tmp_path / name)
        assert not is_video(tmp_path / name)


def squares(*shape, side):
    """Black and white."""
    levels = 255 * np.random.default_rng(0).integers(0, 2, shape, np.uint8)
    return np.kron(levels, np.ones((side, side), np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_pictures_are_turned_upright_by_their_exif(tmp_path, kind):
    pixels = squares(3, 5, side=16)
    for orientation, (upright, _) in UPRIGHT.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(tmp_path / "a", kind, exif=exif)
        expected = upright(pixels)
        actual = picture_of(tmp_path / "a", (*expected.shape, 1))[..., 0]
        assert_array_equal(actual > 127, expected > 127, err_msg=str(orientation))
    damaged = b"Exif\0\0II*\0\x08\0\0\0\xff\xff"
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=damaged)
    actual = picture_of(tmp_path / "a.png", (*pixels.shape, 1))[..., 0]
    assert_array_equal(actual, pixels)


def turned(path, matrix):
    pixels = squares(5, 5, side=32)
    write_video(path, 3, codec="mpeg4", frames=[pixels] * 3)
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 44
    a, b, c, d = (int(value * 65536) for value in matrix)
    numbers = np.array([a, b, 0, c, d, 0, 0, 0, 1 << 30], ">i4")
    content[start : start + 36] = numbers.tobytes()
    path.write_bytes(content)
    return pixels


def test_videos_are_turned_upright_by_the_matrix_of_their_track(tmp_path):
    for upright, matrix in UPRIGHT.values():
        pixels = turned(tmp_path / "a.mp4", matrix)
        frames, _ = frames_of(tmp_path / "a.mp4")
        assert np.mean((frames[0] > 127) == (upright(pixels) > 127)) > 0.98, matrix
    turned(tmp_path / "a.mp4", (0.7, 0.7, -0.7, 0.7))
    assert_fails(frames_of, tmp_path / "a.mp4", "right angle")
