"""Clips of frames and videos go where their folders say; damaged ones are used as far as they decode."""

import contextlib
import re
import resource
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import pack, truncate, write_pictures, write_video
from tests.errors import assert_fails
from unroll_jax.train.config.errors import StorageError
from unroll_jax.train.data.clips import clip_folders, split_clips, standard_frame
from unroll_jax.train.data.files import SPLITS, OriginalFile
from unroll_jax.train.data.media import fingerprint_media
from unroll_jax.train.data.video import open_footage, patch_sequences, some_of, windows

LAYOUTS = {  # the clips of train, validation and test, and ignored ones
    "Avenue": (
        ["training_videos/01.avi", "training_videos/02.avi"],
        ["training_videos/10.avi"],
        ["testing_videos/01.avi"],
        [],
    ),
    "UCSD Ped2": (["UCSD/Train/Train001"], ["UCSD/Train/Train016"], ["UCSD/Test/Test012"], ["UCSD/Test/Test012_gt"]),
    "ShanghaiTech": (["training/videos/01_001.avi"], ["training/videos/13_007.avi"], ["testing/frames/01_0014"], []),
    "no splits": ([f"clip{number}" for number in range(1, 11)], ["clip11"], ["clip12"], []),
    "videos of masks or in a clip of frames": (
        ["training/frames/01"],
        ["training/frames/02"],
        ["testing/frames/01"],
        ["training/frames/01/all.avi", "testing/videos/02_gt.avi"],
    ),
}
LOOKS = {
    "UCSD without its folders": ("Train001", "Train002", "Train003", "Test001"),
    "other names": ("frames_train/1", "frames_train/2", "frames_test/1"),
    "camel case": ("MyTrainSet/1", "MyTrainSet/2", "MyTestSet/1"),
    "one folder beside others": ("a", "b", "c", "held-out/d", "eval/e"),
    "beside known ones": ("train/1", "train/2", "test/1", "test_hard/1"),
}


def paths(*names):
    return [PurePosixPath(name) for name in names]


def read(root: Path, log=print) -> dict[str, dict[str, np.ndarray]]:
    """Every clip of every split, {split: {name: frames}}."""
    fingerprint_media(root)
    with open_footage(root, log) as splits:
        return {split: {clip.name: np.stack(list(clip.frames)) for clip in clips} for split, clips in splits.items()}


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("training/frames/01", "testing/frames/01"),
        ("UCSDped2/Train/Train001", "UCSDped2/Test/Test001"),
        ("training_videos/01.avi", "testing_videos/01.avi"),
        ("data/train/city/a", "data/test/city/a"),
        ("city/train/a", "city/test/a"),
    ],
)
def test_known_folders_name_the_split_and_a_tenth_of_train_validates(train, test, tmp_path):
    clips = paths(*(train.replace("01", f"{n:02d}").replace("/a", f"/{n:02d}") for n in range(1, 13)), test)
    splits = split_clips(clips, root=tmp_path)
    assert [splits[split] for split in SPLITS] == [clips[:11], clips[11:12], clips[12:]]


@pytest.mark.parametrize("case", LOOKS)
def test_folders_that_look_like_splits_under_unknown_names_fail(case, tmp_path):
    assert_fails(lambda root: split_clips(paths(*LOOKS[case]), root=root), tmp_path, "looks like", "ROOT/train/")


def test_clips_that_all_look_like_one_split_are_split_and_those_outside_of_splits_passed_over_and_logged(tmp_path):
    lines: list[str] = []
    for names in (("Train001", "Train002", "Train003"), ("train/a", "train/b", "test/c", "extra/d")):
        splits = split_clips(paths(*names), root=tmp_path, log=lines.append)
        assert [splits[split] for split in SPLITS] == [[each] for each in paths(*names[:3])]
    assert ["extra/d" in line for line in lines] == [True]


@pytest.mark.parametrize("mask", ["Test/Test001_gt", "testing/01_mask", "test/ground_truth/1", "train/1/flow"])
def test_masks_and_folders_inside_of_clips_are_passed_over_and_logged(mask, tmp_path):
    lines: list[str] = []
    files = [OriginalFile(PurePosixPath(folder) / "1.png", Path(folder)) for folder in ("train/1", mask)]
    assert list(clip_folders(files, root=tmp_path, log=lines.append)) == paths("train/1")
    assert mask in lines[0]


@pytest.mark.parametrize(
    ("layout", "mode", "reverse"),
    [(layout, "w:gz", False) for layout in LAYOUTS] + [("UCSD Ped2", "w", True), ("UCSD Ped2", "zip", False)],
)
def test_layouts_come_to_their_splits_from_folders_and_archives_in_any_order_that_leave_nothing(
    layout, mode, reverse, tmp_path, monkeypatch
):
    names = [name for part in LAYOUTS[layout] for name in part]
    videos = [name for name in names if name.endswith(".avi")]
    folders = dict.fromkeys((name for name in names if name not in videos), 21)
    root = write_pictures(tmp_path / "data", folders, size=(36, 24), suffix="tif", mode="L")
    for name in videos:
        write_video(root / name, 23)
    for name in folders:
        (root / name / "._001.tif").write_bytes(b"resource fork")
        (root / name / "notes.txt").write_text("not a frame")
    lines: list[str] = []
    clips, archive = read(root, lines.append), pack(root, mode, reverse=reverse)
    expected = dict(zip(SPLITS, LAYOUTS[layout][:3], strict=True))
    assert {split: list(split_clips) for split, split_clips in clips.items()} == expected
    assert {frames.shape[1:] for split in SPLITS for frames in clips[split].values()} == {(160, 160)}
    assert any("2 video(s)" in line for line in lines) == layout.startswith("videos")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = sorted(tmp_path.rglob("*"))
    for split, taken in read(archive).items():
        assert [name.removeprefix("data/") for name in taken] == expected[split]
        for name, frames in taken.items():
            np.testing.assert_array_equal(frames, clips[split][name.removeprefix("data/")])
    assert sorted(tmp_path.rglob("*")) == before
    for name in {*videos} & {*clips["train"]}:
        np.testing.assert_array_equal(clips["train"][name][:, 80, 80], 2 * np.arange(23))


@pytest.mark.parametrize("clips", [{".": 95}, {"data/my_test_clip": 95}, {"train/a": 60, "test/b": 20}])
def test_a_single_clip_of_frames_is_cut_in_time(tmp_path, clips):
    taken = read(write_pictures(tmp_path / "clips", clips))
    assert [len(taken[split]) for split in SPLITS] == [2, 1, 1]
    starts = [name.split("/")[-1] for split in SPLITS for name in taken[split] if "frames" in name]
    assert starts == [f"frames {start} to {start + 19}" for start in range(0, 20 * len(starts), 20)]


@pytest.mark.parametrize(
    ("name", "mode"), [("only.avi", None), ("only.avi", "w"), ("train.mpeg4", None), ("only", None)]
)
def test_one_video_of_any_suffix_is_cut_in_time_and_its_remainder_dropped(name, mode, tmp_path):
    video = write_video(tmp_path / "data/only.avi", 95).rename(tmp_path / "data" / name)
    clips = read(video if mode is None else pack(tmp_path / "data", mode))
    assert [len(clips[split]) for split in SPLITS] == [2, 1, 1]
    levels = [frames[:, 0, 0] for split in SPLITS for frames in clips[split].values()]
    np.testing.assert_array_equal(np.concatenate(levels), 2 * np.arange(80))


def test_windows_are_consecutive_and_patches_follow_one_position_through_time():
    frames = np.random.default_rng(0).integers(0, 256, (45, 160, 160), np.uint8)
    first, second = windows(frames)
    np.testing.assert_array_equal([first, second], [frames[:20], frames[20:40]])
    assert list(windows(frames[:19])) == []
    sequences = patch_sequences(first)
    assert sequences.shape == (100, 20, 256)
    np.testing.assert_array_equal(sequences[23, 7], first[7, 32:48, 48:64].ravel())  # row 2, column 3
    np.testing.assert_array_equal(np.sort(sequences.ravel()), np.sort(first.ravel()))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "L"])
def test_any_picture_becomes_grey_and_square(mode):
    frame = standard_frame(Image.new("RGB", (360, 240), (90, 90, 90)).convert(mode))
    assert (frame.shape, frame.dtype) == ((160, 160), np.uint8)
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160), np.uint8)
    np.testing.assert_array_equal(standard_frame(Image.fromarray(pixels)), pixels)
    with pytest.raises(ValueError, match="more than 8 bits"):
        standard_frame(Image.fromarray(np.full((160, 160), 40_000, np.uint16)))
    assert some_of([f"{number:03d}" for number in range(100)]) == "000; 001; ...; 099"


def test_frames_that_decode_count_and_not_the_header(tmp_path):
    root = write_video(tmp_path / "grey.avi", 80)
    header = root.read_bytes()
    stream_header = header.index(b"strh") + 8 + 32  # dwLength of the stream header: the claimed frames
    root.write_bytes(header[:stream_header] + (160).to_bytes(4, "little") + header[stream_header + 4 :])
    lines: list[str] = []
    assert sum(map(len, read(root, lines.append).values())) == 4
    assert lines == ["  grey.avi: using the 80 frames that decode, of 160 in the header"]


@pytest.mark.parametrize(
    ("name", "count", "codec", "share", "line"),
    [
        ("a.avi", 120, "mpeg4", 0.6, r"a.avi: using the \d+ frames that decode, of 120 in the header"),
        ("a.mp4", 120, "mpeg4", 0.6, r"a.mp4: using the \d+ frames that decode, of 120 in the header"),
        ("a.ts", 99, "mpeg2video", 0.8, "frames are damaged and used as they decode"),
    ],
)
def test_a_truncated_video_is_used_as_far_as_it_decodes_and_logged(tmp_path, name, count, codec, share, line):
    options = {"movflags": "faststart"} if name == "a.mp4" else {}
    lines: list[str] = []
    read(truncate(write_video(tmp_path / name, count, codec=codec, options=options), share), lines.append)
    assert any(re.search(line, each) for each in lines)


def test_a_video_that_stops_decoding_fails(tmp_path):
    video = truncate(write_video(tmp_path / "a.avi", 80, codec="png"))
    assert_fails(read, video, "of 80 frames", "whole AVI or MP4 file")


@contextlib.contextmanager
def files_of_at_most(size):
    """The system does not write longer files, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("mode", [None, "w"])
def test_a_full_temporary_disk_is_not_damage_of_the_originals(mode, tmp_path, monkeypatch):
    video = write_video(tmp_path / "data/only.avi", 62)
    root = video if mode is None else pack(tmp_path / "data", mode)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    refusal = rf"^cannot write to {tmp_path}.* \(File too large\); free room there, .* TMPDIR$"
    with files_of_at_most(8192), pytest.raises(StorageError, match=refusal):
        read(root)
    assert not list((tmp_path / "temporary").iterdir())
