"""Clips of frames and videos go where their folders say. Damaged ones are used as
far as they decode."""

import re
import shutil
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from tests.data.conftest import pack, truncate, write_pictures, write_video
from tests.errors import assert_fails, one_line
from tests.train.commands import quiet
from unroll_jax.train.data.clips import find_clips, split_clips, standard_frame
from unroll_jax.train.data.files import SPLITS, fingerprint_below
from unroll_jax.train.data.pictures import open_media
from unroll_jax.train.tasks.video.data import open_footage, patch_sequences, windows

LAYOUTS = {  # the clips of train, validation and test, and ignored ones
    "UCSD Ped2": (
        ["UCSD/Train/Train001"],
        ["UCSD/Train/Train016"],
        ["UCSD/Test/Test012"],
        ["UCSD/Test/Test012_gt"],
    ),
    "masks, and what lies in a clip of frames": (
        ["training_videos/01.avi", "training_videos/02.avi"],
        ["training_videos/10.avi"],
        ["testing_videos/01"],
        [
            "testing_videos/01/all.avi",
            "testing_videos/02_gt.avi",
            "testing_videos/ground_truth/1",
        ],
    ),
}
# The clips of train, validation and test by their names alone.
SPLIT = {
    "a tenth of train validates": (
        [f"UCSDped2/Train/Train{n:03d}" for n in range(1, 12)],
        ["UCSDped2/Train/Train012"],
        ["UCSDped2/Test/Test001"],
    ),
    "names": (["Train001", "Train002"], ["Train003"], ["Test001"]),
}
UNNAMED = [
    ("a b c held-out/d", "names no splits"),
    (
        "s1_test.avi s1_train.avi s2_test.avi s2_train.avi",
        "'s1_test.avi' looks like a split",
    ),
    ("train/1 train/2 test/1 test_hard/1", "'test_hard/1' looks like a split"),
]


def paths(*names):
    return [PurePosixPath(name) for name in names]


def read(root: Path, log=print) -> dict[str, dict[str, np.ndarray]]:
    fingerprint_below(root)
    with open_footage(root, log) as splits:
        return {
            split: {clip.name: np.stack(list(clip.frames)) for clip in clips}
            for split, clips in splits.items()
        }


@pytest.mark.parametrize("case", SPLIT)
def test_folders_and_names_state_the_split(case):
    expected, lines = [paths(*names) for names in SPLIT[case]], []
    names = [name for part in expected for name in part]
    splits = split_clips([*names, *paths("extra/d")], log=lines.append)
    assert [splits[split] for split in SPLITS] == expected
    assert ["extra/d" in line for line in lines] == [True]


@pytest.mark.parametrize(("names", "words"), UNNAMED)
def test_clips_of_several_folders_and_unknown_names_of_splits_fail(names, words):
    with one_line(words, "ROOT/train/"):
        split_clips(paths(*names.split()))


def test_clips_and_frames_of_equal_numbers_go_by_name(tmp_path):
    write_pictures(tmp_path, dict.fromkeys(("1", "01", "001", "2"), 2))
    shutil.copy(tmp_path / "1" / "002.png", tmp_path / "1" / "0001.png")
    with open_media(tmp_path, quiet) as media:
        for pictures in (media.pictures, media.pictures[::-1]):
            clips = find_clips(media._replace(pictures=pictures), log=quiet)
            assert list(map(str, clips)) == ["001", "01", "1", "2"]
            frames = [file.path.name for file in clips[PurePosixPath("1")]]
            assert frames == ["0001.png", "001.png", "002.png"]


def test_clips_without_splits_are_dealt(tmp_path):
    # names that contain the name of a split, and are none
    within = "trailer contest latest"
    for names in (
        "test_1 test_2 test_3",
        "in/TestA in/TestB in/TestC",
        "train.1.avi train.2.avi train.avi",
        within,
    ):
        clips = paths(*names.split())
        assert list(split_clips(clips).values()) == [[each] for each in clips]
    clips = paths(*(f"clip{number}" for number in range(1, 13)))
    dealt = [clips[:10], clips[10:11], clips[11:]]
    assert list(split_clips(clips).values()) == dealt


@pytest.mark.parametrize(
    ("layout", "mode", "reverse"),
    [
        ("masks, and what lies in a clip of frames", "w:gz", False),
        ("UCSD Ped2", "zip", True),
    ],
)
def test_layouts_come_to_their_splits_from_folders_and_archives(
    layout, mode, reverse, tmp_path
):
    *parts, masks = LAYOUTS[layout]
    names = [name for part in (*parts, masks) for name in part]
    videos = [name for name in names if name.endswith(".avi")]
    folders = dict.fromkeys((name for name in names if name not in videos), 21)
    root = tmp_path / "data"
    write_pictures(root, folders, size=(36, 24), suffix="tif", mode="L")
    for name in videos:
        write_video(root / name, 23)
    for name in folders:
        (root / name / "._001.tif").write_bytes(b"resource fork")
        (root / name / "notes.txt").write_text("not a frame")
    lines: list[str] = []
    clips, archive = read(root, lines.append), pack(root, mode, reverse=reverse)
    assert [list(clips[split]) for split in SPLITS] == parts
    assert any(f"passing over {len(masks)} clip(s) of masks" in line for line in lines)
    before = sorted(tmp_path.rglob("*"))
    for split, taken in read(archive).items():
        expected = clips[split]
        assert [name.removeprefix("data/") for name in taken] == list(expected)
        for frames, other in zip(taken.values(), expected.values(), strict=True):
            assert frames.shape[1:] == (160, 160)
            assert_array_equal(frames, other)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left"


def test_a_video_file_is_cut_in_time(tmp_path):
    root = write_video(tmp_path / "grey.avi", 95).rename(tmp_path / "only")
    clips = read(root)
    names = [f"frames {start} to {start + 19}" for start in range(0, 80, 20)]
    assert [list(clips[split]) for split in SPLITS] == [
        names[:2],
        names[2:3],
        names[3:],
    ]
    levels = [frames[:, 0, 0] for split in SPLITS for frames in clips[split].values()]
    assert_array_equal(np.concatenate(levels), 2 * np.arange(80))


def test_windows_are_consecutive_and_patches_follow_one_position_through_time():
    frames = np.random.default_rng(0).integers(0, 256, (45, 160, 160), np.uint8)
    first, second = windows(frames)
    assert_array_equal([first, second], [frames[:20], frames[20:40]])
    assert list(windows(frames[:19])) == []
    sequences = patch_sequences(first)
    assert sequences.shape == (100, 20, 256)
    # row 2, column 3
    assert_array_equal(sequences[23, 7], first[7, 32:48, 48:64].ravel())
    assert_array_equal(np.sort(sequences.ravel()), np.sort(first.ravel()))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "L"])
def test_any_picture_becomes_grey_and_square(mode):
    frame = standard_frame(Image.new("RGB", (360, 240), (90, 90, 90)).convert(mode))
    assert (frame.shape, frame.dtype) == ((160, 160), np.uint8)
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160), np.uint8)
    assert_array_equal(standard_frame(Image.fromarray(pixels)), pixels)
    with pytest.raises(ValueError, match="more than 8 bits"):
        standard_frame(Image.fromarray(np.full((160, 160), 40_000, np.uint16)))


@pytest.mark.parametrize(
    ("name", "count", "codec", "share", "line"),
    [
        (
            "a.avi",
            120,
            "mpeg4",
            0.6,
            r"a.avi: using the \d+ frames that decode, of 120 in the header",
        ),
        ("a.ts", 99, "mpeg2video", 0.8, "[1-9] are damaged and used as they decode"),
    ],
)
def test_a_truncated_video_is_used_as_far_as_it_decodes(
    tmp_path, name, count, codec, share, line
):
    lines: list[str] = []
    read(
        truncate(write_video(tmp_path / name, count, codec=codec), share), lines.append
    )
    assert any(re.search(line, each) for each in lines)


def test_a_video_that_stops_decoding_fails(tmp_path):
    video = truncate(write_video(tmp_path / "a.avi", 80, codec="png"))
    assert_fails(read, video, "of 80 frames", "whole AVI or MP4 file")
