"""Files are pictures and videos by their contents, upright as players show them, and none vanishes in silence."""

import functools
import io

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import write_frames, write_video
from tests.data.test_clips import read
from tests.errors import assert_fails
from unroll_jax.train.data.clips import is_video, video_frames
from unroll_jax.train.data.files import SPLITS
from unroll_jax.train.data.media import is_picture
from unroll_jax.train.data.pictures import picture_of
from unroll_jax.train.data.video import frames_of

CLASSES = {"train/cat": 10, "train/dog": 10, "test/cat": 2, "test/dog": 2}
# The upright picture of stored pixels (height, width), by EXIF's numbers of its orientation.
UPRIGHT = {
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: np.rot90(stored, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).T,
    8: lambda stored: np.rot90(stored, 1),
}
# The same of videos: a, b, c, d of the matrix that brings (x, y) to (ax + cy, bx + dy).
MATRICES = {
    1: (1, 0, 0, 1),
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, 1, -1, 0),
    7: (0, -1, -1, 0),
    8: (0, -1, 1, 0),
}


@pytest.fixture
def folder(opened):
    """Opens a root as a folder of images."""
    return functools.partial(opened, "image_folder")


def rename(folder, suffix, *, kind=None):
    """Gives the pictures of a folder another suffix, and another format."""
    for path in folder.glob("*.png"):
        if kind is not None:
            stream = io.BytesIO()
            Image.open(path).save(stream, kind, **({"lossless": True} if kind == "WEBP" else {}))
            path.write_bytes(stream.getvalue())
        path.rename(path.with_suffix(suffix))


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".jfif", None), (".scan", None), ("", None), (".webp", "WEBP"), (".gif", "WEBP"), ("", "PPM")]
)
def test_pictures_are_read_whatever_they_are_called(folder, write_images, suffix, kind):
    root = write_images(CLASSES)
    expected = folder(root).read("test", [0, 1, 2, 3])
    rename(root / "train/dog", suffix, kind=kind)
    rename(root / "test/dog", suffix, kind=kind)
    data = folder(root)
    assert [data.num_examples(split) for split in SPLITS] == [18, 2, 4]
    for actual, wanted in zip(data.read("test", [0, 1, 2, 3]), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_files_passed_over_are_counted_by_suffix(folder, write_images):
    root, lines = write_images(CLASSES), []
    for name in ("train/cat/a.txt", "train/cat/b.TXT", "test/README", "train/dog/.DS_Store"):
        (root / name).write_text("P1 is no picture")
    folder(root, lines.append)
    assert "  passing over 3 file(s) that are no picture: 1 without a suffix, 2 .txt" in lines


@pytest.mark.parametrize("place", ["train/cow", "test/dog"])
def test_a_class_that_vanishes_is_an_error(folder, write_images, place):
    root = write_images({name: count for name, count in CLASSES.items() if name != place})
    (root / place).mkdir()
    (root / place / "1.heic").write_bytes(b"\0\0\0\x18ftypheic")
    assert_fails(folder, root, place.split("/")[1], "1 .heic")


@pytest.mark.parametrize("sound", [{"Train/1": 20, "Train/2": 20, "Test/1": 20}, {"1": 20, "2": 20, "4": 20}])
def test_a_clip_that_vanishes_is_an_error(tmp_path, sound):
    root = write_frames(tmp_path / "clips", sound)
    lost = root / next(iter(sound)).replace("1", "3")
    lost.mkdir()
    (lost / "001.heic").write_bytes(b"\0\0\0\x18ftypheic")
    assert_fails(read, root, str(lost.relative_to(root)), "1 .heic")
    (lost / "001.heic").rename(root / "notes.heic")
    read(root)


def test_no_media_at_all_is_an_error_that_counts_them(folder, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.heic").write_text("x")
    assert_fails(folder, tmp_path, "no picture", "1 .heic")
    assert_fails(read, tmp_path, "no picture or video", "1 .heic")


def test_a_gif_is_a_picture_or_a_video_by_its_frames(tmp_path):
    frames = [Image.fromarray(np.full((32, 32), 10 * number, np.uint8)) for number in range(5)]
    frames[0].save(tmp_path / "still.gif")
    frames[0].save(tmp_path / "moves.gif", save_all=True, append_images=frames[1:])
    assert [is_picture(tmp_path / f"{name}.gif") for name in ("still", "moves")] == [True, False]
    assert [frames_of(tmp_path / f"{name}.gif")[0].shape for name in ("still", "moves")] == [
        (1, 160, 160),
        (5, 160, 160),
    ]


@pytest.mark.parametrize("name", ["a.flv", "a", "a.clip"])
def test_a_video_is_one_whatever_it_is_called(tmp_path, name):
    for number in range(3):
        written = write_video(tmp_path / f"clips/{number}.flv", 21, codec="flv1")
        written.rename(written.with_name(f"{number}{name}"))
    assert [len(clips) for clips in read(tmp_path / "clips").values()] == [1, 1, 1]
    assert frames_of(tmp_path / f"clips/0{name}")[0].shape == (21, 160, 160)


@pytest.mark.parametrize(
    "text", ["#EXTM3U\n#EXTINF:1,\nb.avi\n", "ffconcat version 1.0\nfile b.avi\n", "A file of text\n", "P1 text", ""]
)
def test_a_text_is_neither_and_a_list_of_other_files_opens_none(tmp_path, text):
    write_video(tmp_path / "b.avi", 21)
    for name in ("a", "a.txt", "a.m3u8", "a.nfo"):
        (tmp_path / name).write_text(text)
        assert not is_picture(tmp_path / name)
        assert not is_video(tmp_path / name)
    (tmp_path / "a.avi").write_text(text)
    assert_fails(lambda path: list(video_frames(path, where=str(path), log=print)), tmp_path / "a.avi", "video")


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_pictures_are_turned_upright_by_their_exif(tmp_path, orientation, kind):
    pixels = np.kron(np.random.default_rng(0).integers(0, 2, (3, 5)) * 255, np.ones((16, 16))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "a", kind, exif=exif)
    expected = UPRIGHT[orientation](pixels)
    actual = picture_of(tmp_path / "a", (*expected.shape, 1))[..., 0]
    np.testing.assert_array_equal(actual > 127, expected > 127)


def test_damaged_exif_leaves_a_picture_as_it_is(tmp_path):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    np.testing.assert_array_equal(picture_of(tmp_path / "a.png", (8, 8, 1))[..., 0], pixels)


def turned(path, matrix):
    """Writes an MP4 of one picture with the matrix in the header of its track, and returns the picture."""
    av = pytest.importorskip("av", reason="av, which reads videos, is not installed")
    pixels = np.kron(np.random.default_rng(0).integers(0, 2, (5, 5)) * 255, np.ones((32, 32))).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25, width=160, height=160, pix_fmt="yuv420p")
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(pixels, format="gray").reformat(format="yuv420p")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 44
    a, b, c, d = (int(value * 65536) for value in matrix)
    content[start : start + 36] = np.array([a, b, 0, c, d, 0, 0, 0, 1 << 30], ">i4").tobytes()
    path.write_bytes(content)
    return pixels


@pytest.mark.parametrize("orientation", MATRICES)
def test_videos_are_turned_upright_by_the_matrix_of_their_track(tmp_path, orientation):
    pixels = turned(tmp_path / "a.mp4", MATRICES[orientation])
    frames, _ = frames_of(tmp_path / "a.mp4")
    assert np.mean((frames[0] > 127) == (UPRIGHT[orientation](pixels) > 127)) > 0.98


def test_a_video_turned_by_less_than_a_right_angle_is_an_error(tmp_path):
    turned(tmp_path / "a.mp4", (0.7, 0.7, -0.7, 0.7))
    assert_fails(frames_of, tmp_path / "a.mp4", "right angle")
