from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.errors import assert_fails
from train.data.clips import SPLITS
from train.data.video_file import fingerprint_video, video_clips


def write_video(path: Path, num_frames: int, *, codec: str = "ffv1") -> Path:
    """Writes a lossless video whose n-th frame is of grey level 2n."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 160, "gray"
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((160, 160), 2 * number, np.uint8), format="gray")
            container.mux(stream.encode(frame))
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
