"""Clips of any layout: folders of frames and video files beside each other, in a folder, a tar archive, or one file."""

import contextlib
import functools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ..config.errors import UserError
from .clips import (
    LAYOUT,
    Folders,
    Splits,
    check_lengths,
    clip_folders,
    clip_to_cut,
    holds_masks,
    natural,
    numbered,
    read_frames,
    split_clips,
    stated_split,
    stretches,
)
from .files import Log, OriginalFile, files_below, fingerprint_files, may_be_tar, open_tar
from .pictures import IMAGE_SUFFIXES, below, is_image
from .prepare import Source
from .splits import SPLITS
from .video_file import SUFFIXES, decode_into, part_of, video_clips, whole_video

WANTED = "a video file (AVI, MP4), or a folder or tar archive of frames or videos"
is_footage = functools.partial(is_image, suffixes=(*IMAGE_SUFFIXES, *SUFFIXES))

Videos = dict[PurePosixPath, OriginalFile]


def fingerprint_footage(root: Path) -> str:
    """Fingerprints a file, or the frames and videos of a folder."""
    if not root.exists():
        raise UserError(f"data.root={root} does not exist; give {WANTED}")
    return fingerprint_files([root / file.path for file in _in_folder(root)] if root.is_dir() else [root], root=root)


@contextlib.contextmanager
def footage_clips(root: Path, log: Log) -> Iterator[Splits]:
    """Opens the clips below a root: every folder of frames and every video is one, read when its turn comes.

    Splits are those of the folders, as for frames alone. Where one clip serves several splits it is cut in time: a
    video is then decoded once, into a temporary file. Of an archive one video at a time is copied to a file. A file
    that is no archive is a video, whatever its suffix.
    """
    if root.is_file() and (root.suffix.lower() in SUFFIXES or not may_be_tar(root)):
        with video_clips(root, log) as splits:
            yield splits
        return
    with _opened(root) as files, tempfile.TemporaryFile() as spool:
        folders, videos = _clips(files, root, log)
        read = lambda name: _frames(name, folders, videos, root, log)  # noqa: E731
        names = sorted([*folders, *videos], key=natural)
        clips = {name: read(name) for name in names}
        if one := clip_to_cut(names, root=root):
            name, num_splits = one
            count = decode_into(spool, clips.pop(name), log)
            parts = stretches(name, count, num_splits=num_splits, root=root)
            clips = {part: part_of(spool, start) for part, start in parts.items()} | clips
        chosen = split_clips(list(clips), root=root, log=log)
        yield numbered({split: [(str(name), clips[name]) for name in chosen[split]] for split in SPLITS})


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[list[OriginalFile]]:
    """The frames and videos of a folder or a tar archive; they can be read while the context lasts."""
    if root.is_dir():
        yield _in_folder(root)
        return
    with open_tar(root, is_footage) as files:
        yield _some(files, root)


def _in_folder(root: Path) -> list[OriginalFile]:
    named = [(below(root, path), path) for path in files_below(root)]
    files = [
        OriginalFile(name, 0, path.read_bytes, functools.partial(contextlib.nullcontext, path))
        for name, path in named
        if is_footage(name)
    ]
    return _some(files, root)


def _some(files: list[OriginalFile], root: Path) -> list[OriginalFile]:
    if not files:
        kinds = ", ".join((*IMAGE_SUFFIXES, *SUFFIXES))
        raise UserError(
            f"data.root={root} holds neither frames nor videos; give one with {kinds} files, or one video alone, which "
            "may have any suffix"
        )
    return files


def _clips(files: Sequence[OriginalFile], root: Path, log: Log) -> tuple[Folders, Videos]:
    """The folders of frames and the videos that are clips; masks are none, and a clip that is there as both is one."""
    images = [file for file in files if is_image(file.path)]
    folders = clip_folders(images, root=root, log=log) if images else {}
    check_lengths(folders, root)
    videos = {file.path: file for file in files if not is_image(file.path)}
    both = {(stated_split(name, root=root), name.name) for name in folders}
    passed_over = [
        name
        for name in videos
        if holds_masks(name)
        or any(above in folders for above in name.parents)
        or (stated_split(name, root=root), name.stem) in both
    ]
    if passed_over:
        words = "video(s) hold masks, lie in a clip of frames, or are there as frames too, and are passed over"
        log(f"  {len(passed_over)} {words}, '{passed_over[0]}' for one")
    videos = {name: file for name, file in videos.items() if name not in passed_over}
    if not (folders or videos):
        raise UserError(f"data.root={root} holds no clips but masks; the layout is {LAYOUT}")
    return folders, videos


def _frames(name: PurePosixPath, folders: Folders, videos: Videos, root: Path, log: Log) -> Iterator[np.ndarray]:
    """The frames of a clip, grey and square."""
    if name in folders:
        yield from read_frames(folders[name], root)
        return
    local = videos[name].local
    assert local is not None  # `_opened` says of all files where they lie
    with local() as path:
        yield from whole_video(path, f"data.root={root}: video '{name}'", log)


SOURCE = Source(fingerprint_footage, footage_clips, WANTED)
