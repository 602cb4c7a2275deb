"""Frames and videos beside each other, as data sets are published, in folders and archives; damage in one line."""

import contextlib
import resource
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import write_frames
from tests.data.test_video_file import cut, write_video
from tests.errors import assert_fails
from unroll_jax.train.config.data import DataConfig
from unroll_jax.train.config.errors import StorageError, UserError
from unroll_jax.train.data.clips import fingerprint_frames
from unroll_jax.train.data.footage import fingerprint_footage, footage_clips
from unroll_jax.train.data.prepare import resolve_source
from unroll_jax.train.data.splits import SPLITS
from unroll_jax.train.data.video import SOURCES, load, prepare

# Clips by layout: how each lies, and the split that it must come to.
PUBLISHED = {
    "Avenue": {
        "training_videos/01.avi": "train",
        "training_videos/02.avi": "train",
        "training_videos/10.avi": "validation",
        "testing_videos/01.avi": "test",
    },
    "UCSD Ped1": {
        "UCSDped1/Train/Train001": "train",
        "UCSDped1/Train/Train002": "validation",
        "UCSDped1/Test/Test001": "test",
        "UCSDped1/Test/Test001_gt": None,
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
SIZES = {"UCSD Ped1": (238, 158), "UCSD Ped2": (360, 240)}
SUFFIXES = {"ShanghaiTech": "jpg"}


def write(layout: str, root: Path) -> Path:
    """Writes a layout, with what lies beside its clips."""
    for name in PUBLISHED[layout]:
        if name.endswith(".avi"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write_video(root / name, 23)
    folders = {name: 21 for name in PUBLISHED[layout] if not name.endswith(".avi")}
    write_frames(root, folders, size=SIZES.get(layout, (160, 160)), suffix=SUFFIXES.get(layout, "tif"))
    beside = root / "shanghaitech/testing/test_frame_mask"
    if layout == "ShanghaiTech":
        for folder in (beside, beside.with_name("test_pixel_mask")):
            folder.mkdir()
            np.save(folder / "01_0014.npy", np.zeros(21, np.uint8))
    return root


def read(root: Path) -> dict[str, dict[str, np.ndarray]]:
    """Every clip of every split, {split: {name: frames}}."""
    fingerprint_footage(root)
    with footage_clips(root, print) as splits:
        return {
            split: {clip.name: np.stack(list(clip.frames)) for clip in clip_set.clips}
            for split, clip_set in splits.items()
        }


@pytest.mark.parametrize("layout", PUBLISHED)
def test_published_layouts_come_to_their_splits_from_folders_and_archives(layout, tmp_path, pack):
    root = write(layout, tmp_path / "data")
    clips = read(root)
    wanted = {split: [name for name, where in PUBLISHED[layout].items() if where == split] for split in SPLITS}
    assert {split: list(split_clips) for split, split_clips in clips.items()} == wanted
    assert {split_clips.shape[1:] for split in SPLITS for split_clips in clips[split].values()} == {(160, 160)}
    for split, split_clips in read(pack(root, "w:gz")).items():
        assert [name.removeprefix("data/") for name in split_clips] == wanted[split]
        for name, frames in split_clips.items():
            np.testing.assert_array_equal(frames, clips[split][name.removeprefix("data/")])


def test_frames_of_videos_are_those_that_were_written(tmp_path):
    (clip,) = read(write("ShanghaiTech", tmp_path))["train"].values()
    np.testing.assert_array_equal(clip[:, 80, 80], 2 * np.arange(23))


def test_the_deviation_of_pixels_is_that_of_train_alone(tmp_path):
    root = write("ShanghaiTech", tmp_path / "data")
    lines: list[str] = []
    data = load(DataConfig("video", str(root), str(tmp_path / "prepared")), log=lines.append)
    levels = np.repeat(2 * np.arange(20), 160**2) / 255.0  # of the first 20 frames of the train video
    assert data.pixel_std == pytest.approx(np.std(levels), rel=1e-6)
    assert "  train: 100 sequences, clips: 1 (shanghaitech/training/videos/01_001.avi)" in lines


def test_a_clip_that_is_there_as_frames_and_as_a_video_is_one(tmp_path):
    write_frames(tmp_path, {"training/frames/01": 20, "training/frames/02": 20, "testing/frames/01": 20})
    (tmp_path / "training/videos").mkdir()
    for name in ("01", "02", "03"):
        write_video(tmp_path / f"training/videos/{name}.avi", 20)
    lines: list[str] = []
    with footage_clips(tmp_path, lines.append) as splits:
        names = {split: [clip.name for clip in splits[split].clips] for split in SPLITS}
    assert names["train"] == ["training/frames/01", "training/frames/02"]
    assert names["validation"] == ["training/videos/03.avi"]
    assert "2 video(s) hold masks, lie in a clip of frames, or are there as frames too" in lines[0]


@pytest.mark.parametrize("name", ["test/01_gt.avi", "ground_truth/01.avi", "train/a/all.avi"])
def test_videos_of_masks_and_inside_of_clips_are_passed_over(name, tmp_path):
    write_frames(tmp_path, {"train/a": 20, "train/b": 20, "test/c": 20})
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write_video(tmp_path / name, 20)
    clips = read(tmp_path)
    assert [list(clips[split]) for split in SPLITS] == [["train/a"], ["train/b"], ["test/c"]]


def test_the_only_train_clip_is_cut_in_time_where_it_is_a_video_too(tmp_path):
    write_frames(tmp_path, {"testing/frames/01": 20})
    (tmp_path / "training").mkdir()
    write_video(tmp_path / "training/01.avi", 65)
    clips = read(tmp_path)
    parts = [f"training/01.avi/frames {start} to {start + 19}" for start in (0, 20, 40)]
    assert [list(clips[split]) for split in SPLITS] == [parts[:2], parts[2:], ["testing/frames/01"]]
    np.testing.assert_array_equal(clips["validation"][parts[2]][:, 0, 0], 2 * np.arange(40, 60))


@pytest.mark.parametrize("packed", [False, True])
def test_one_video_is_cut_in_time_alone_and_in_an_archive(packed, tmp_path, pack):
    (tmp_path / "data").mkdir()
    root = write_video(tmp_path / "data/only.avi", 62)
    clips = read(pack(tmp_path / "data") if packed else root)
    assert [len(clips[split]) for split in SPLITS] == [1, 1, 1]


@pytest.mark.parametrize("name", ["only.AVI", "only.mpeg4", "only"])
def test_a_video_alone_may_have_any_suffix_and_frames_say_who_reads_it(name, tmp_path):
    root = write_video(tmp_path / "only.avi", 62).rename(tmp_path / name)
    assert [len(split_clips) for split_clips in read(root).values()] == [1, 1, 1]
    with pytest.raises(UserError, match=r"nor a whole tar archive of frames; if it is a video, use data.source=video"):
        prepare(DataConfig("frames", str(root), str(tmp_path / "prepared")), log=lambda line: None)


@pytest.mark.parametrize("suffix", ["avi", "mpeg4"])
def test_a_folder_of_videos_has_no_frames_and_those_of_unknown_suffixes_are_told(suffix, tmp_path):
    write_video(tmp_path / "a.avi", 20).rename(tmp_path / f"a.{suffix}")
    assert_fails(fingerprint_frames, tmp_path, "holds no frames", "videos are read with data.source=video")
    if suffix == "mpeg4":
        assert_fails(read, tmp_path, "holds neither frames nor videos", "one video alone, which may have any suffix")


def test_frames_alone_come_as_from_the_source_of_frames(tmp_path):
    root = write_frames(tmp_path / "data", {f"clip{number}": 20 for number in range(4)})
    config = {"root": str(root), "prepared": str(tmp_path / "prepared")}
    one, other = (load(DataConfig(source, **config), log=lambda line: None) for source in ("video", "frames"))
    assert one.facts == other.facts
    numbers = np.arange(one.num_sequences("train"))
    np.testing.assert_array_equal(one.read("train", numbers), other.read("train", numbers))


def test_a_truncated_video_of_an_archive_is_named(tmp_path, pack):
    root = write("Avenue", tmp_path / "data")
    cut(write_video(root / "testing_videos/01.avi", 80, codec="mpeg4"))
    assert_fails(read, pack(root), "video 'data/testing_videos/01.avi' is truncated", "copy it again")


def test_a_short_video_among_frames_is_named(tmp_path):
    root = write("ShanghaiTech", tmp_path)
    write_video(root / "shanghaitech/training/videos/13_007.avi", 19)
    assert_fails(read, root, "13_007.avi' has 19 frames, fewer than the 20 of a sequence")


def test_a_tiff_of_many_pages_is_named(tmp_path):
    root = write("UCSD Ped2", tmp_path)
    page = Image.new("L", (360, 240))
    page.save(root / "UCSDped2/Train/Train001/003.tif", save_all=True, append_images=[page])
    assert_fails(read, root, "'UCSDped2/Train/Train001/003.tif'", "holds 2 pictures")


def test_an_archive_that_is_cut_is_refused(tmp_path, pack):
    archive = pack(write("Avenue", tmp_path / "data"))
    assert_fails(read, cut(archive), "nor a whole tar archive")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root / "nowhere", ("does not exist", "a video file (AVI, MP4), or a folder or tar archive")),
        (lambda root: root, ("holds neither frames nor videos", ".avi")),
    ],
)
def test_what_holds_nothing_is_refused(make, words, tmp_path):
    assert_fails(read, make(tmp_path), *words)


def test_masks_alone_are_refused(tmp_path):
    write_video(tmp_path / "01_gt.avi", 20)
    assert_fails(read, tmp_path, "holds no clips but masks")


def test_the_source_needs_a_root():
    assert_fails(lambda root: resolve_source(SOURCES, DataConfig(root)), "video", "data.source=video needs data.root")


def test_a_video_of_an_archive_leaves_nothing_behind(tmp_path, pack, monkeypatch):
    archive = pack(write("Avenue", tmp_path / "data"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert len(read(archive)["train"]) == 2
    assert not list((tmp_path / "temporary").iterdir())


@contextlib.contextmanager
def files_of_at_most(size):
    """The system refuses to write longer files, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("packed", "words"), [(True, "where data/only.avi of .* is unpacked"), (False, "where decoded frames are kept")]
)
def test_a_disk_that_refuses_temporary_files_is_no_damage_of_the_originals(packed, words, tmp_path, pack, monkeypatch):
    (tmp_path / "data").mkdir()
    root = write_video(tmp_path / "data/only.avi", 62)
    root = pack(tmp_path / "data") if packed else root
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    refusal = rf"^cannot write to {tmp_path}.*, {words} \(File too large\); free room there, .* TMPDIR$"
    with files_of_at_most(8192), pytest.raises(StorageError, match=refusal):
        read(root)
