"""Clips go where folders say; what may say it and is not known is refused; one clip is cut in time."""

from pathlib import PurePosixPath

import numpy as np
import pytest
from PIL import Image

from tests.data.test_frames import read
from tests.errors import assert_fails
from unroll_jax.train.config.data import DataConfig
from unroll_jax.train.data.clips import clip_folders, split_clips, split_sizes, standard_frame, stated_split
from unroll_jax.train.data.files import OriginalFile
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.video import load, patch_sequences, some_of, windows

PUBLISHED = {
    "Ped2, Avenue and ShanghaiTech as handed round": ("training/frames/01", "testing/frames/01"),
    "UCSD": ("UCSDped2/Train/Train001", "UCSDped2/Test/Test001"),
    "Avenue": ("training_videos/01.avi", "testing_videos/01.avi"),
    "lower case": ("train/a", "test/a"),
    "groups inside of splits": ("data/train/city/a", "data/test/city/a"),
    "splits inside of groups": ("city/train/a", "city/test/a"),
}
LOOKS = {
    "UCSD without its folders": ("Train001", "Train002", "Train003", "Test001"),
    "other names": ("frames_train/1", "frames_train/2", "frames_test/1"),
    "camel case": ("MyTrainSet/1", "MyTrainSet/2", "MyTestSet/1"),
    "one folder beside others": ("a", "b", "c", "held-out/d", "eval/e"),
    "beside known ones": ("train/1", "train/2", "test/1", "test_hard/1"),
}
HUNDRED = [f"{number:03d}" for number in range(100)]


def paths(*names):
    return [PurePosixPath(name) for name in names]


@pytest.mark.parametrize("layout", PUBLISHED)
def test_splits_of_published_layouts_are_kept_apart(layout, tmp_path):
    train, test = PUBLISHED[layout]
    clips = paths(*(train.replace("01", number).replace("/a", f"/{number}") for number in HUNDRED[1:13]), test)
    splits = split_clips(clips, root=tmp_path)
    assert [len(splits[split]) for split in SPLITS] == [11, 1, 1]
    assert splits["test"] == paths(test)


@pytest.mark.parametrize("name", ["validation", "val", "Valid", "dev"])
def test_a_folder_of_validation_is_used_and_train_kept_whole(name, tmp_path):
    clips = paths("train/a", f"{name}/b", "test/c")
    assert split_clips(clips, root=tmp_path) == dict(zip(SPLITS, ([clip] for clip in clips), strict=True))


@pytest.mark.parametrize("case", LOOKS)
def test_folders_that_look_like_splits_and_are_not_known_are_refused(case, tmp_path):
    assert_fails(lambda root: split_clips(paths(*LOOKS[case]), root=root), tmp_path, "look like splits", "ROOT/train/")


def test_clips_that_all_look_like_one_split_are_dealt_as_any_others(tmp_path):
    splits = split_clips(paths("Train001", "Train002", "Train003"), root=tmp_path)
    assert [len(splits[split]) for split in SPLITS] == [1, 1, 1]


def test_a_clip_in_folders_of_two_splits_is_refused(tmp_path):
    assert_fails(lambda root: stated_split(PurePosixPath("train/val/a"), root=root), tmp_path, "train and validation")


def test_clips_beside_the_splits_are_passed_over_and_said_to_be(tmp_path):
    lines: list[str] = []
    splits = split_clips(paths("train/a", "train/b", "test/c", "extra/d"), root=tmp_path, log=lines.append)
    assert [len(splits[split]) for split in SPLITS] == [1, 1, 1]
    assert lines == ["  1 clip(s) lie in the folder of no split and are passed over, 'extra/d' for one"]


def files(*folders):
    return [OriginalFile(PurePosixPath(folder) / "1.png", 0, bytes) for folder in folders]


@pytest.mark.parametrize("mask", ["Test/Test001_gt", "testing/01_mask", "test/ground_truth/1", "train/1/flow"])
def test_masks_and_folders_inside_of_clips_are_passed_over_and_said_to_be(mask, tmp_path):
    lines: list[str] = []
    folders = clip_folders(files("train/1", mask), root=tmp_path, log=lines.append)
    assert list(folders) == paths("train/1")
    assert f"1 folder(s) hold masks or lie in a clip and are passed over, '{mask}' for one" in lines[0]


def test_frames_beside_folders_of_frames_are_refused(tmp_path):
    assert_fails(lambda root: clip_folders(files(".", "a"), root=root), tmp_path, "frames beside folders", "'1.png'")


def test_masks_alone_are_refused(tmp_path):
    assert_fails(lambda root: clip_folders(files("Test001_gt"), root=root), tmp_path, "no clips but masks")


@pytest.mark.parametrize("folder", [".", "clip", "data/my_test_clip"])
def test_a_single_clip_is_cut_in_time_as_a_video_file_is(write_clips, folder):
    root = write_clips({folder: 95}) if folder != "." else write_clips({"x": 95}) / "x"
    clips = read(root)
    assert [len(clips[split]) for split in SPLITS] == [2, 1, 1]
    assert [name.split("/")[-1] for split in SPLITS for name in clips[split]] == [
        f"frames {start} to {start + 19}" for start in range(0, 80, 20)
    ]


def test_the_single_train_clip_gives_validation_its_end(write_clips):
    clips = read(write_clips({"training/frames/01": 60, "testing/frames/01": 20}))
    assert [len(clips[split]) for split in SPLITS] == [2, 1, 1]
    assert list(clips["validation"]) == ["training/frames/01/frames 40 to 59"]


@pytest.mark.parametrize(("lengths", "needed"), [({"a": 59}, "60"), ({"train": 39, "test": 20}, "40")])
def test_a_clip_too_short_to_be_cut_is_an_error(write_clips, lengths, needed):
    assert_fails(read, write_clips(lengths), f"has {next(iter(lengths.values()))} frames; give {needed}")


def test_every_split_says_its_clips_and_names_few_of_them(write_clips, tmp_path):
    lengths = {f"training/frames/{number:02d}": 20 for number in range(1, 7)} | {"testing/frames/01": 20}
    lines: list[str] = []
    data = load(DataConfig("frames", str(write_clips(lengths)), str(tmp_path / "prepared")), log=lines.append)
    assert lines[1:4] == [
        "  train: 500 sequences, clips: 5 (training/frames/01; training/frames/02; ...; training/frames/05)",
        "  validation: 100 sequences, clips: 1 (training/frames/06)",
        "  test: 100 sequences, clips: 1 (testing/frames/01)",
    ]
    assert np.array_equal(np.unique(data.clips("test")), [6])
    assert some_of(HUNDRED) == "000; 001; ...; 099"


def test_windows_are_consecutive_and_do_not_overlap():
    frames = np.arange(45).reshape(45, 1, 1).repeat(160, 1).repeat(160, 2)
    first, second = windows(frames)
    assert first[:, 0, 0].tolist() == list(range(20))
    assert second[:, 5, 7].tolist() == list(range(20, 40))


def test_frames_short_of_a_window_give_none():
    assert list(windows(np.zeros((19, 160, 160)))) == []


def test_patches_follow_one_position_through_time():
    window = np.random.default_rng(0).integers(0, 256, (20, 160, 160), np.uint8)
    sequences = patch_sequences(window)
    assert sequences.shape == (100, 20, 256)
    np.testing.assert_array_equal(sequences[23, 7], window[7, 32:48, 48:64].ravel())  # row 2, column 3


def test_patches_hold_every_pixel_once():
    window = np.arange(2 * 32 * 48).reshape(2, 32, 48)
    assert sorted(patch_sequences(window).ravel()) == list(range(window.size))


@pytest.mark.parametrize("count", [3, 4, 10, 17, 126, 1000])
def test_splits_take_everything_and_none_is_empty(count):
    sizes = split_sizes(count)
    assert sum(sizes.values()) == count
    assert min(sizes.values()) >= 1
    assert abs(sizes["test"] - count / 10) <= 1


def test_fewer_than_three_things_cannot_be_split():
    with pytest.raises(ValueError, match="2 cannot be split"):
        split_sizes(2)


def test_a_grey_frame_of_the_right_size_is_untouched():
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160), np.uint8)
    np.testing.assert_array_equal(standard_frame(Image.fromarray(pixels)), pixels)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "L"])
def test_any_picture_becomes_grey_and_square(mode):
    frame = standard_frame(Image.new("RGB", (360, 240), (90, 90, 90)).convert(mode))
    assert frame.shape == (160, 160)
    assert frame.dtype == np.uint8


def test_deep_pixels_are_refused_rather_than_clipped():
    with pytest.raises(ValueError, match="more than 8 bits"):
        standard_frame(Image.fromarray(np.full((160, 160), 40_000, np.uint16)))
