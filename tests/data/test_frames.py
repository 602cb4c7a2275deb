import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from tests.errors import assert_fails
from unroll_jax.train.data.clips import clip_folders, fingerprint_frames, frame_clips, split_clips
from unroll_jax.train.data.pictures import open_image_files
from unroll_jax.train.data.splits import SPLITS

UCSD = {"Train/Train001": 20, "Train/Train002": 25, "Train/Train010": 20, "Test/Test001": 20}


def read(root: Path) -> dict[str, dict[str, np.ndarray]]:
    """Every clip of every split, {split: {name: frames}}."""
    fingerprint_frames(root)
    with frame_clips(root, print) as splits:
        return {
            split: {clip.name: np.stack(list(clip.frames)) for clip in clip_set.clips}
            for split, clip_set in splits.items()
        }


def make_tar(root: Path, *, mode: Literal["w", "w:gz"] = "w", reverse: bool = False) -> Path:
    """Packs a folder of clips, its files in order or against it."""
    archive = root.with_suffix(".tar" if mode == "w" else ".tar.gz")
    with tarfile.open(archive, mode) as tar:
        for file in sorted(root.rglob("*.png"), reverse=reverse):
            tar.add(file, file.relative_to(root.parent))
    return archive


def test_ucsd_layout_names_the_splits_and_validation_is_the_end_of_train(write_clips):
    clips = read(write_clips(UCSD))
    assert [list(clips[split]) for split in SPLITS] == [
        ["Train/Train001", "Train/Train002"],
        ["Train/Train010"],
        ["Test/Test001"],
    ]


def test_flat_folders_are_split_by_clip(write_clips):
    clips = read(write_clips({f"clip{number}": 20 for number in range(1, 13)}))
    assert [len(clips[split]) for split in SPLITS] == [10, 1, 1]
    assert list(clips["test"]) == ["clip12"]  # natural order: 12 after 9


def test_clips_have_numbers_of_their_own(write_clips):
    with frame_clips(write_clips(UCSD), print) as splits:
        numbers = [clip.number for split in SPLITS for clip in splits[split].clips]
    assert numbers == [0, 1, 2, 3]


@pytest.mark.parametrize("num_train", [2, 10, 16, 40])
def test_a_tenth_of_train_and_at_least_one_clip_validates(num_train, tmp_path):
    names = [PurePosixPath(f"Train/Train{number:03d}") for number in range(num_train)]
    splits = split_clips([*names, PurePosixPath("Test/Test001")], root=tmp_path)
    assert splits["train"] + splits["validation"] == names
    assert len(splits["validation"]) == max(1, round(num_train / 10))


def test_masks_hidden_files_and_other_files_are_passed_over(write_clips):
    root = write_clips({**UCSD, "Test/Test001_gt": 20})
    (root / "Train/Train001/._001.png").write_bytes(b"resource fork")
    (root / "Train/Train001/notes.txt").write_text("not a frame")
    assert list(read(root)["test"]) == ["Test/Test001"]


def test_frames_come_in_natural_order(write_clips):
    root = write_clips({"clip": 12})
    for number in range(1, 13):
        (root / f"clip/{number:03d}.png").rename(root / f"clip/{number}.png")
    with open_image_files(root, what="frames") as files:
        (frames,) = clip_folders(files, root=root).values()
    assert [file.path.stem for file in frames] == [str(number) for number in range(1, 13)]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_archive_gives_what_its_folder_gives(write_clips, mode, reverse):
    root = write_clips(UCSD)
    from_folder, from_archive = read(root), read(make_tar(root, mode=mode, reverse=reverse))
    for split in SPLITS:
        for name, frames in from_folder[split].items():
            np.testing.assert_array_equal(from_archive[split][f"clips/{name}"], frames)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp"])
def test_large_colour_frames_become_grey_and_square(write_clips, suffix):
    root = write_clips({"a": 20, "b": 20, "c": 20}, size=(90, 60), suffix=suffix)
    for file in root.rglob(f"*.{suffix}"):
        with Image.open(file) as picture:
            colour = picture.convert("RGB")
        colour.save(file)
    assert read(root)["train"]["a"].shape == (20, 160, 160)


def test_the_fingerprint_follows_the_files_and_not_the_place(write_clips):
    root = write_clips({"a": 2, "b": 2})
    before = fingerprint_frames(root)
    moved = root.rename(root.with_name("moved"))
    assert fingerprint_frames(moved) == before
    (moved / "a/001.png").write_bytes((moved / "b/001.png").read_bytes())
    assert fingerprint_frames(moved) != before


def test_a_missing_root_is_an_error(tmp_path):
    assert_fails(read, tmp_path / "nowhere", "does not exist")


def test_an_empty_root_is_an_error(tmp_path):
    assert_fails(read, tmp_path, "is empty")


def test_a_root_without_frames_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing to see")
    assert_fails(read, tmp_path, "holds no frames", ".png")


def test_an_archive_without_frames_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing to see")
    with tarfile.open(tmp_path / "notes.tar", "w") as tar:
        tar.add(tmp_path / "notes.txt", "notes.txt")
    assert_fails(read, tmp_path / "notes.tar", "holds no frames")


def test_a_short_clip_is_an_error_that_names_it(write_clips):
    assert_fails(read, write_clips({**UCSD, "Train/Train003": 19}), "'Train/Train003' has 19 frames", "20")


def test_a_frame_that_is_no_image_is_an_error_that_names_it(write_clips):
    root = write_clips(UCSD)
    (root / "Train/Train002/007.png").write_text("not an image")
    assert_fails(read, root, "'Train/Train002/007.png'", "not an image")


def test_a_link_that_leads_nowhere_is_an_error_that_names_it(write_clips):
    root = write_clips(UCSD)
    (root / "Train/Train002/026.png").symlink_to(root / "gone.png")
    assert_fails(read, root, "'Train/Train002/026.png'", "No such file")


def test_the_last_of_two_members_of_one_name_counts(write_clips):
    root = write_clips(UCSD)
    archive = make_tar(root)
    Image.new("L", (160, 160), 77).save(root / "Train/Train001/001.png")
    with tarfile.open(archive, "a") as tar:
        tar.add(root / "Train/Train001/001.png", "clips/Train/Train001/001.png")
    frames = read(archive)["train"]["clips/Train/Train001"]
    assert frames.shape == (20, 160, 160)
    assert (frames[0] == 77).all()


def test_a_frame_that_is_cut_short_is_an_error_that_names_it(write_clips):
    root = write_clips(UCSD)
    frame = root / "Test/Test001/003.png"
    frame.write_bytes(frame.read_bytes()[:1000])
    assert_fails(read, root, "'Test/Test001/003.png'")


def test_frames_of_two_sizes_in_a_clip_are_an_error(write_clips):
    root = write_clips(UCSD)
    Image.new("L", (80, 60)).save(root / "Train/Train001/020.png")
    assert_fails(read, root, "'Train/Train001/020.png' is 80x60", "160x160")


def test_too_few_clips_to_split_are_an_error(write_clips):
    assert_fails(read, write_clips({"a": 20, "b": 20}), "holds 2 clip(s)", "at least 3")


@pytest.mark.parametrize("missing", ["Train", "Test"])
def test_train_without_test_is_an_error(write_clips, missing):
    assert_fails(read, write_clips({name: 20 for name in UCSD if not name.startswith(missing)}), f"0 {missing}")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.3, 0.5, 0.9])
def test_a_truncated_archive_is_an_error(write_clips, mode, keep):
    archive = make_tar(write_clips(UCSD), mode=mode)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(keep * len(whole))])
    assert_fails(read, archive, "nor a whole tar archive")


@pytest.mark.parametrize("cut", [0, 100, 512, 700])
def test_an_archive_cut_at_or_inside_a_member_is_an_error(write_clips, cut):
    archive = make_tar(write_clips({"a": 20, "b": 20, "c": 21}))
    with tarfile.open(archive) as tar:
        end = tar.getmembers()[-1].offset
    archive.write_bytes(archive.read_bytes()[: end + cut])
    assert_fails(read, archive, "nor a whole tar archive")


def test_a_file_that_is_no_archive_is_an_error(tmp_path):
    (tmp_path / "clips.tar").write_text("not an archive" * 1000)
    assert_fails(read, tmp_path / "clips.tar", "nor a whole tar archive")


@pytest.mark.parametrize("name", ["../clip/001.png", "/clip/001.png", "clip/../../001.png"])
def test_members_outside_the_archive_are_an_error(tmp_path, name):
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert_fails(read, tmp_path / "clips.tar", repr(name), "outside the archive")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_an_archive_are_an_error(tmp_path, kind):
    member = tarfile.TarInfo("clip/001.png")
    member.type, member.linkname = kind, "/etc/hostname"
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        tar.addfile(member)
    assert_fails(read, tmp_path / "clips.tar", "'clip/001.png' is not a plain file")


def test_nothing_is_extracted_from_an_archive(write_clips, monkeypatch, tmp_path):
    archive = make_tar(write_clips(UCSD))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = sorted(tmp_path.rglob("*"))
    read(archive)
    assert sorted(tmp_path.rglob("*")) == before
