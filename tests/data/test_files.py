"""Original files in folders: those that cannot be reached, or lie under odd names and links, are told in one line."""

import errno
import os
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.errors import assert_fails
from unroll_jax.train.checkpoint import Checkpoints
from unroll_jax.train.config.data import DataConfig, ImageConfig, TextConfig
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.clips import video_frames
from unroll_jax.train.data.files import files_below, fingerprint_files, require_listable
from unroll_jax.train.data.images import prepare as prepare_images
from unroll_jax.train.data.instructions import read_prompts
from unroll_jax.train.data.media import fingerprint_media, is_picture
from unroll_jax.train.data.pictures import picture_of
from unroll_jax.train.data.pretrained.folders import open_safetensors, read_tokenizer
from unroll_jax.train.data.rows import read_rows
from unroll_jax.train.data.text import fingerprint_imdb
from unroll_jax.train.data.text import prepare as prepare_texts
from unroll_jax.train.data.video import prepare
from unroll_jax.train.data.words import glove_embeddings
from unroll_jax.train.metrics import read_metrics, read_predictions
from unroll_jax.train.system.files import read_object
from unroll_jax.train.system.reading import open_regular, read_regular
from unroll_jax.train.weights import claim

CONFIGS = {
    "video": (prepare, DataConfig("video", "there")),
    "image_folder": (prepare_images, ImageConfig("image_folder", "there")),
    "cifar10": (prepare_images, ImageConfig("cifar10", "there")),
    "table": (prepare_texts, TextConfig("table", "there")),
    "imdb": (prepare_texts, TextConfig("imdb", "there")),
}


@pytest.mark.parametrize("source", CONFIGS)
def test_a_root_without_permission_is_told_in_one_line(source, monkeypatch):
    # Tests may run as root, whom nothing is forbidden.
    def forbidden(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", forbidden)
    read, config = CONFIGS[source]
    with pytest.raises(UserError, match=r"^data.root=there cannot be read \('there.*': Permission denied\); name a pl"):
        read(config)


def test_links_to_folders_are_followed_and_those_to_a_folder_above_refused(tmp_path):
    for name in ("root/a", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_text("")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere")
    assert sorted(file.local.relative_to(tmp_path / "root") for file in files_below(tmp_path / "root")) == [
        Path("a/1.png"),
        Path("b/1.png"),
    ]
    (tmp_path / "elsewhere/up").symlink_to(tmp_path / "root")
    assert_fails(files_below, tmp_path / "root", "links to a folder above it")


@pytest.mark.parametrize(("name", "words"), [("a\udce9", "UTF-8"), ("a\nb", "control characters")])
def test_names_that_cannot_be_shown_are_refused(tmp_path, name, words):
    (tmp_path / name).write_text("")
    assert_fails(lambda root: fingerprint_files([root / name], root=root), tmp_path, ascii(name), words)


@pytest.fixture
def forbidden(monkeypatch):
    """``forbidden(folder)``: the folder may not be listed, which permissions alone do not tell a test run by root."""
    scan = os.scandir

    def forbid(folder):
        def refuse(path="."):
            if Path(path) == folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", refuse)

    return forbid


@pytest.mark.parametrize("place", [".", "clip1"])
def test_frames_that_may_not_be_listed_are_not_taken_for_none(tmp_path, forbidden, place):
    for name in ("clip0", "clip1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "001.png").write_bytes(b"1")
    assert len(files_below(tmp_path)) == 2
    forbidden(tmp_path / place)
    with pytest.raises(UserError, match=r"cannot be listed \(Permission denied\); it needs permission"):
        fingerprint_media(tmp_path)


@pytest.mark.parametrize("place", [".", "train/neg"])
def test_reviews_that_may_not_be_listed_are_not_taken_for_none(tmp_path, forbidden, place):
    if place != ".":
        (tmp_path / "train" / "neg").mkdir(parents=True)
        (tmp_path / "train" / "neg" / "0_3.txt").write_text("bad")
    require_listable(tmp_path)
    forbidden(tmp_path / place)
    with pytest.raises(UserError, match=r"cannot be listed \(Permission denied\)"):
        fingerprint_imdb(tmp_path)


def test_a_pipe_a_device_and_a_large_file_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        assert_fails(lambda path: read_regular(path, where=str(path)), path, "is not a regular file")
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    assert_fails(lambda path: read_regular(path, where=str(path), limit=1 << 20), tmp_path / "large", "1 MiB")
    with pytest.raises(UserError, match="large"), open_regular(tmp_path / "large", where="large", limit=9):
        pass
    zero = Path("/dev/zero")
    assert_fails(lambda path: prepare_images(ImageConfig("image_folder", str(path))), zero, "nor a regular file")


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": read_object,
    "metrics.jsonl": read_metrics,
    "predictions.npz": lambda path: read_predictions(path.parent),
    "checkpoints/5/notes/metadata": lambda path: Checkpoints(path.parents[2], read_only=True),
    "checkpoints/5/state/manifest.ocdbt": lambda path: Checkpoints(path.parents[2], read_only=True),
    "model.safetensors": open_safetensors,
    "export/model.safetensors": claim,
    "export/config.json": claim,
    "tokenizer.json": lambda path: read_tokenizer(path.parent),
    "prompts.jsonl": read_prompts,
    "vectors.txt": lambda path: glove_embeddings(path, ["film"]),
    "table.csv": lambda path: list(read_rows(path, ["text"])),
    "picture.png": lambda path: picture_of(path, (8, 8, 1)),
    "picture": is_picture,
    "video.avi": lambda path: list(video_frames(path, where=str(path), log=print)),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe_or_fills_memory_with_a_device(tmp_path, name, kind):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")

    def hang(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(20)
    try:
        assert_fails(READERS[name], path.parent if name.startswith("export") else path, "")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_small_file_takes_little_memory_to_read(tmp_path):
    (tmp_path / "small").write_bytes(bytes(2000))
    tracemalloc.start()
    assert len(read_regular(tmp_path / "small", where="small")) == 2000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_relative_file_that_is_missing_is_told_with_the_folder_it_was_looked_for_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_fails(lambda path: read_regular(path, where=str(path)), Path("a b.csv"), str(tmp_path))
