"""Damaged clips and videos: the original is named in one line, or used as far as it decodes."""

import contextlib
import io
import re
import resource
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from tests.data.conftest import truncate, write_frames, write_video
from tests.data.test_clips import UCSD, read
from tests.errors import assert_fails
from unroll_jax.train.config.errors import StorageError


def second_size(root):
    Image.new("L", (80, 60)).save(root / "Train/Train001/020.png")


def two_pages(root):
    page = Image.new("L", (160, 160))
    page.save(root / "Train/Train001/003.tif", save_all=True, append_images=[page])


def archive_of(**member):
    """Writes an archive of one member in place of the folder."""

    def spoil(root):
        with tarfile.open(root.with_suffix(".tar"), "w") as tar:
            info = tarfile.TarInfo(member.pop("name", "clip/001.png"))
            info.type = member.pop("type", tarfile.REGTYPE)
            tar.addfile(info, io.BytesIO())
        return root.with_suffix(".tar")

    return spoil


def cut_archive(place):
    """Packs the folder and cuts the archive at a place after the start of its last member."""

    def spoil(root):
        archive = root.with_suffix(".tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(root, "clips")
            end = tar.getmembers()[-1].offset
        archive.write_bytes(archive.read_bytes()[: end + place])
        return archive

    return spoil


def of_no_frames(path):
    av = pytest.importorskip("av", reason="av, which reads videos, is not installed")
    with av.open(str(path), "w") as container:
        container.add_stream("mpeg4", rate=25, width=160, height=160, pix_fmt="yuv420p")
        container.start_encoding()


def of_two_sizes(path):
    parts = [write_video(path.with_suffix(".ts"), 25, codec="mpeg2video", side=side).read_bytes() for side in (160, 80)]
    path.with_suffix(".ts").unlink()
    path.write_bytes(b"".join(parts))


def with_video(write):
    """Clips of videos, the last of which is spoilt."""

    def spoil(root):
        for name in "abcd":
            write_video(root / f"videos/{name}.avi", 20)
        write(root / "videos/d.avi")
        return root / "videos"

    return spoil


BAD_CLIPS = {
    "a short clip": (lambda root: (root / "Train/Train001/020.png").unlink(), "'Train/Train001' has 19 frames"),
    "no image": (lambda root: (root / "Train/Train002/007.png").write_text("x"), "'Train/Train002/007.png' cannot be"),
    "cut short": (lambda root: truncate(root / "Test/Test001/003.png"), "'Test/Test001/003.png'"),
    "a dangling link": (lambda root: (root / "Train/Train002/026.png").symlink_to(root / "gone"), "No such file"),
    "a device": (lambda root: (root / "Train/Train002/026.png").symlink_to("/dev/zero"), "is not a regular file"),
    "two sizes": (second_size, "'Train/Train001/020.png' cannot be read as an image (it is 80x60, others are 160x160"),
    "many pages": (two_pages, "holds 2 pictures"),
    "outside of the archive": (archive_of(name="../clip/001.png"), "outside the archive"),
    "a link in the archive": (archive_of(type=tarfile.SYMTYPE), "'clip/001.png' is not a plain file"),
    "a pipe in the archive": (archive_of(type=tarfile.FIFOTYPE), "'clip/001.png' is not a plain file"),
    "an archive cut at a member": (cut_archive(0), "nor a whole tar or zip archive"),
    "an archive cut in a header": (cut_archive(100), "nor a whole tar or zip archive"),
    "a short video": (with_video(lambda path: write_video(path, 19)), "'d.avi' has 19 frames, fewer than the 20"),
    "an empty video": (with_video(lambda path: path.write_bytes(b"")), "'d.avi' cannot be read as a video"),
    "a video without frames": (with_video(of_no_frames), "'d.avi' has 0 frames, fewer than the 20"),
    "a video of two sizes": (with_video(of_two_sizes), "'d.avi' changes from 160x160 to 80x80 at frame 2"),
    "too few clips": (lambda root: write_frames(root / "few", {"a": 20, "b": 20}), "holds 2 clip(s); give at least 3"),
    "no test": (lambda root: write_frames(root / "few", {"Train/1": 20, "Train/2": 20}), "0 Test"),
    "too few frames": (lambda root: write_frames(root / "few", {"a": 59}), "give 60"),
    "too few of train": (lambda root: write_frames(root / "few", {"train": 39, "test": 20}), "give 40"),
}


@pytest.mark.parametrize(("spoil", "words"), BAD_CLIPS.values(), ids=BAD_CLIPS)
def test_originals_that_cannot_be_used_are_named(write_clips, spoil, words):
    root = write_clips(UCSD)
    other = spoil(root)
    assert_fails(read, other if isinstance(other, Path) and other.suffix != ".png" else root, words)


def test_frames_that_decode_count_and_not_the_header(tmp_path):
    root = write_video(tmp_path / "grey.avi", 80)
    header = root.read_bytes()
    stream_header = header.index(b"strh") + 8 + 32  # dwLength of the stream header: the claimed frames
    root.write_bytes(header[:stream_header] + (160).to_bytes(4, "little") + header[stream_header + 4 :])
    lines: list[str] = []
    assert sum(map(len, read(root, lines.append).values())) == 4
    assert lines == ["  grey.avi: using the 80 frames that decode, of 160 in the header"]


@pytest.mark.parametrize(("name", "options"), [("a.avi", {}), ("a.mp4", {"movflags": "faststart"})])
def test_a_truncated_video_is_used_as_far_as_it_decodes_and_logged(tmp_path, name, options):
    root = truncate(write_video(tmp_path / name, 120, codec="mpeg4", options=options), 0.6)
    lines: list[str] = []
    read(root, lines.append)
    assert any(re.search(rf"{name}: using the \d+ frames that decode, of 120 in the header", line) for line in lines)


def test_a_video_that_stops_decoding_fails_and_damaged_frames_are_logged(tmp_path):
    assert_fails(
        read, truncate(write_video(tmp_path / "a.avi", 80, codec="png")), "of 80 frames", "whole AVI or MP4 file"
    )
    lines: list[str] = []
    read(truncate(write_video(tmp_path / "a.ts", 99, codec="mpeg2video"), 0.8), lines.append)
    assert len(lines) == 1
    assert "frames are damaged and used as they decode" in lines[0]


@contextlib.contextmanager
def files_of_at_most(size):
    """The system does not write longer files, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("packed", [True, False])
def test_a_full_temporary_disk_is_not_damage_of_the_originals(packed, tmp_path, pack, monkeypatch):
    root = write_video(tmp_path / "data/only.avi", 62)
    root = pack(tmp_path / "data") if packed else root
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    refusal = rf"^cannot write to {tmp_path}.* \(File too large\); free room there, .* TMPDIR$"
    with files_of_at_most(8192), pytest.raises(StorageError, match=refusal):
        read(root)
    assert not list((tmp_path / "temporary").iterdir())
