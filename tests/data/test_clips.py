"""Clips of frames and videos go where their folders say."""

from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import write_frames, write_video
from tests.errors import assert_fails
from unroll_jax.train.data.clips import clip_folders, split_clips, standard_frame, stated_split
from unroll_jax.train.data.files import SPLITS, OriginalFile
from unroll_jax.train.data.media import fingerprint_media
from unroll_jax.train.data.video import open_footage, patch_sequences, some_of, windows

LAYOUTS = {  # the split of each clip
    "Avenue": {
        "training_videos/01.avi": "train",
        "training_videos/02.avi": "train",
        "training_videos/10.avi": "validation",
        "testing_videos/01.avi": "test",
    },
    "UCSD Ped2": {
        "UCSDped2/Train/Train001": "train",
        "UCSDped2/Train/Train016": "validation",
        "UCSDped2/Test/Test012": "test",
        "UCSDped2/Test/Test012_gt": None,
    },
    "ShanghaiTech": {
        "shanghaitech/training/videos/01_001.avi": "train",
        "shanghaitech/training/videos/13_007.avi": "validation",
        "shanghaitech/testing/frames/01_0014": "test",
    },
}
LOOKS = {
    "UCSD without its folders": ("Train001", "Train002", "Train003", "Test001"),
    "other names": ("frames_train/1", "frames_train/2", "frames_test/1"),
    "camel case": ("MyTrainSet/1", "MyTrainSet/2", "MyTestSet/1"),
    "one folder beside others": ("a", "b", "c", "held-out/d", "eval/e"),
    "beside known ones": ("train/1", "train/2", "test/1", "test_hard/1"),
}
UCSD = {"Train/Train001": 20, "Train/Train002": 25, "Train/Train010": 20, "Test/Test001": 20}


def paths(*names):
    return [PurePosixPath(name) for name in names]


def write(layout, root):
    for name in LAYOUTS[layout]:
        if name.endswith(".avi"):
            write_video(root / name, 23)
    folders = {name: 21 for name in LAYOUTS[layout] if not name.endswith(".avi")}
    return write_frames(root, folders, size=(360, 240), suffix="tif")


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


def test_clips_without_splits_are_split_by_clip_in_natural_order(tmp_path):
    assert [len(each) for each in split_clips(paths("Train001", "Train002", "Train003"), root=tmp_path).values()] == [
        1,
        1,
        1,
    ]
    clips = read(write_frames(tmp_path / "flat", {f"clip{number}": 20 for number in range(1, 13)}))
    assert [len(clips[split]) for split in SPLITS] == [10, 1, 1]
    assert list(clips["test"]) == ["clip12"]


def test_clips_outside_of_the_splits_are_passed_over_and_logged(tmp_path):
    lines: list[str] = []
    splits = split_clips(paths("train/a", "train/b", "test/c", "extra/d"), root=tmp_path, log=lines.append)
    assert [len(splits[split]) for split in SPLITS] == [1, 1, 1]
    assert "extra/d" in lines[0]
    assert_fails(lambda root: stated_split(PurePosixPath("train/val/a"), root=root), tmp_path, "train and validation")


def files(*folders):
    return [OriginalFile(PurePosixPath(folder) / "1.png", Path(folder)) for folder in folders]


@pytest.mark.parametrize("mask", ["Test/Test001_gt", "testing/01_mask", "test/ground_truth/1", "train/1/flow"])
def test_masks_and_folders_inside_of_clips_are_passed_over_and_logged(mask, tmp_path):
    lines: list[str] = []
    assert list(clip_folders(files("train/1", mask), root=tmp_path, log=lines.append)) == paths("train/1")
    assert mask in lines[0]
    assert_fails(lambda root: clip_folders(files("Test001_gt"), root=root), tmp_path, "no clips but masks")
    assert_fails(lambda root: clip_folders(files(".", "a"), root=root), tmp_path, "'1.png'")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts_come_to_their_splits_from_folders_and_archives(layout, tmp_path, pack):
    root = write(layout, tmp_path / "data")
    clips = read(root)
    wanted = {split: [name for name, where in LAYOUTS[layout].items() if where == split] for split in SPLITS}
    assert {split: list(split_clips) for split, split_clips in clips.items()} == wanted
    assert {split_clips.shape[1:] for split in SPLITS for split_clips in clips[split].values()} == {(160, 160)}
    for split, taken in read(pack(root, "w:gz")).items():
        assert [name.removeprefix("data/") for name in taken] == wanted[split]
        for name, frames in taken.items():
            np.testing.assert_array_equal(frames, clips[split][name.removeprefix("data/")])
    if layout == "ShanghaiTech":
        (clip,) = clips["train"].values()
        np.testing.assert_array_equal(clip[:, 80, 80], 2 * np.arange(23))


@pytest.mark.parametrize(("mode", "reverse"), [("w", False), ("w:gz", True), ("zip", False)])
def test_an_archive_in_any_order_gives_the_frames_of_its_folder_and_leaves_nothing(
    write_clips, pack, mode, reverse, monkeypatch, tmp_path
):
    root = write_clips(UCSD)
    (root / "Train/Train001/._001.png").write_bytes(b"resource fork")
    (root / "Train/Train001/notes.txt").write_text("not a frame")
    from_folder, archive = read(root), pack(root, mode, reverse=reverse)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = sorted(tmp_path.rglob("*"))
    from_archive = read(archive)
    for split in SPLITS:
        for name, frames in from_folder[split].items():
            np.testing.assert_array_equal(from_archive[split][f"clips/{name}"], frames)
    assert sorted(tmp_path.rglob("*")) == before


def test_videos_of_masks_or_in_a_clip_of_frames_are_passed_over(tmp_path):
    write_frames(tmp_path, {"training/frames/01": 20, "training/frames/02": 20, "testing/frames/01": 20})
    write_video(tmp_path / "testing/videos/02_gt.avi", 20)
    write_video(tmp_path / "training/frames/01/all.avi", 20)
    lines: list[str] = []
    clips = read(tmp_path, lines.append)
    assert [list(clips[split]) for split in SPLITS] == [
        ["training/frames/01"],
        ["training/frames/02"],
        ["testing/frames/01"],
    ]
    assert "2 video(s)" in lines[0]


@pytest.mark.parametrize(
    ("clips", "sizes"),
    [({".": 95}, [2, 1, 1]), ({"data/my_test_clip": 95}, [2, 1, 1]), ({"train/a": 60, "test/b": 20}, [2, 1, 1])],
)
def test_a_single_clip_of_frames_is_cut_in_time(write_clips, clips, sizes):
    root = write_clips({"x": 95}) / "x" if "." in clips else write_clips(clips)
    taken = read(root)
    assert [len(taken[split]) for split in SPLITS] == sizes
    starts = [name.split("/")[-1] for split in SPLITS for name in taken[split] if "frames" in name]
    assert starts == [f"frames {start} to {start + 19}" for start in range(0, 20 * len(starts), 20)]


@pytest.mark.parametrize("name", ["only.avi", "train.mpeg4", "only"])
@pytest.mark.parametrize("packed", [False, True])
def test_one_video_of_any_suffix_is_cut_in_time_and_its_remainder_dropped(name, packed, tmp_path, pack):
    root = write_video(tmp_path / "data/only.avi", 95).rename(tmp_path / "data" / name)
    if packed and root.suffix.lower() == ".avi":
        root = pack(tmp_path / "data")
    clips = read(root)
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
