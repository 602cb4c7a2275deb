from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.errors import assert_fails
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.video_file import fingerprint_video, video_clips


def write_video(path: Path, num_frames: int, *, codec: str = "ffv1", options: dict[str, str] | None = None) -> Path:
    """Writes a video, lossless unless its codec is not, whose n-th frame is of grey level 2n."""
    pixels = "gray" if codec in ("ffv1", "png") else "yuv420p"
    with av.open(str(path), "w", options=options or {}) as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 160, pixels
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((160, 160), 2 * number, np.uint8), format="gray")
            container.mux(stream.encode(frame.reformat(format=pixels)))
        container.mux(stream.encode())
    return path


def read(root: Path) -> dict[str, list[np.ndarray]]:
    """The clips of every split."""
    fingerprint_video(root)
    with video_clips(root, print) as splits:
        return {split: [np.stack(list(clip.frames)) for clip in splits[split].clips] for split in SPLITS}


def test_clips_are_consecutive_stretches_and_the_last_are_held_out(tmp_path):
    clips = read(write_video(tmp_path / "grey.avi", 95))
    levels = [clip[:, 0, 0] for split in SPLITS for clip in clips[split]]
    assert [len(clips[split]) for split in SPLITS] == [2, 1, 1]
    np.testing.assert_array_equal(np.concatenate(levels), 2 * np.arange(80))


def test_a_video_too_short_for_three_splits_is_an_error(tmp_path):
    assert_fails(read, write_video(tmp_path / "short.avi", 59), "has 59 frames", "60")


def test_a_missing_video_is_an_error(tmp_path):
    assert_fails(read, tmp_path / "nowhere.avi", "does not exist")


def test_a_folder_is_no_video(tmp_path):
    assert_fails(read, tmp_path, "is a folder", "data.source=frames")


def test_an_archive_is_no_video_and_the_source_that_reads_it_is_told(tmp_path, pack):
    (tmp_path / "data").mkdir()
    write_video(tmp_path / "data/a.avi", 20)
    assert_fails(read, pack(tmp_path / "data"), "is a tar archive, not a video; use data.source=video")


@pytest.mark.parametrize("content", [b"", b"not a video", bytes(100_000)])
def test_a_file_that_is_no_video_is_an_error(tmp_path, content):
    (tmp_path / "noise.avi").write_bytes(content)
    assert_fails(read, tmp_path / "noise.avi", "not a video that can be read")


def test_sound_without_pictures_is_an_error(tmp_path):
    with av.open(str(tmp_path / "sound.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    assert_fails(read, tmp_path / "sound.wav", "no video stream")


def test_a_video_that_stops_decoding_is_an_error(tmp_path):
    root = write_video(tmp_path / "grey.avi", 80, codec="png")
    content = bytearray(root.read_bytes())
    damaged = content.index(b"IDAT", len(content) // 2)
    content[damaged : damaged + 50] = bytes(50)
    root.write_bytes(content)
    assert_fails(read, root, "cannot be decoded after")


def test_frames_that_decode_count_and_not_the_header(tmp_path):
    root = write_video(tmp_path / "grey.avi", 80)
    header = root.read_bytes()
    stream_header = header.index(b"strh") + 8 + 32  # dwLength of the stream header, the frames it claims
    root.write_bytes(header[:stream_header] + (160).to_bytes(4, "little") + header[stream_header + 4 :])
    lines: list[str] = []
    with video_clips(root, lines.append) as splits:
        assert sum(splits[split].num_clips for split in SPLITS) == 4
    assert lines == ["  grey.avi: the header claims 160 frames, 80 decode; using the 80"]


def cut(path: Path, share: float = 0.4) -> Path:
    """Cuts off the end of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.avi", {}, "of the 80 that it claims"),
        ("a.mp4", {"movflags": "faststart"}, "of the 80 that it claims"),
        ("a.mkv", {}, "s of the 3.2 s that it claims"),
    ],
)
def test_a_truncated_video_is_refused_with_what_could_be_read_of_what_it_claims(tmp_path, name, options, words):
    root = write_video(tmp_path / name, 80, codec="mpeg4", options=options)
    assert len(read(root)["train"]) == 2
    assert_fails(read, cut(root), "is truncated: ", " frames could be read", words, "copy it again")


def test_a_truncated_video_that_stops_decoding_says_how_many_frames_it_claims(tmp_path):
    root = cut(write_video(tmp_path / "a.avi", 80, codec="png"))
    assert_fails(read, root, " frames of the 80 that it claims")


def test_damaged_frames_are_said_to_be(tmp_path):
    lines: list[str] = []
    root = cut(write_video(tmp_path / "a.ts", 99, codec="mpeg2video"), 0.8)
    with video_clips(root, lines.append) as splits:
        assert splits["train"].num_clips >= 1
    assert len(lines) == 1
    assert lines[0].endswith("frames are damaged, and used as they decode")


def test_videos_of_a_folder_are_clips_and_its_folders_splits(tmp_path):
    lengths = {"training_videos/01": 20, "training_videos/02": 45, "testing_videos/01": 20}
    for name, length in lengths.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_video(tmp_path / f"{name}.avi", length)
    fingerprint_video(tmp_path)
    with video_clips(tmp_path, print) as splits:
        names = {split: [(clip.name, len(list(clip.frames))) for clip in splits[split].clips] for split in SPLITS}
    assert names == {
        "train": [("training_videos/01.avi", 20)],
        "validation": [("training_videos/02.avi", 45)],
        "test": [("testing_videos/01.avi", 20)],
    }


def test_the_only_video_of_a_folder_is_cut_in_time(tmp_path):
    write_video(tmp_path / "only.avi", 95)
    assert [len(clips) for clips in read(tmp_path).values()] == [2, 1, 1]


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (lambda path: write_video(path, 19), ("has 19 frames, fewer than the 20",)),
        (lambda path: cut(write_video(path, 60, codec="mpeg4")), ("is truncated",)),
        (lambda path: path.write_bytes(b""), ("not a video that can be read",)),
    ],
)
def test_a_video_of_a_folder_that_cannot_be_used_is_named(tmp_path, last, words):
    for name in "abcd":
        write_video(tmp_path / f"{name}.avi", 20)
    last(tmp_path / "d.avi")

    def whole(root):
        with video_clips(root, print) as splits:
            return [list(clip.frames) for split in SPLITS for clip in splits[split].clips]

    assert_fails(whole, tmp_path, "video 'd.avi'", *words)
