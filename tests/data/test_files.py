"""Original files in folders: one-line errors for files out of reach, odd names, and
links that lead upwards."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from papers.yang2022.vectors import glove_embeddings
from tests.errors import assert_fails
from unroll_jax.train.core.checkpoint import Checkpoints
from unroll_jax.train.core.metrics import read_metrics, read_predictions
from unroll_jax.train.data.clips import video_frames
from unroll_jax.train.data.files import files_below, fingerprint_files
from unroll_jax.train.data.pictures import is_picture, picture_of
from unroll_jax.train.data.pretrained.folders import open_safetensors, read_tokenizer
from unroll_jax.train.data.rows import read_rows
from unroll_jax.train.loading import claim
from unroll_jax.train.system.files import read_object
from unroll_jax.train.tasks.images.data import prepare as prepare_images
from unroll_jax.train.tasks.images.options import ImageConfig
from unroll_jax.train.tasks.language.instructions import read_prompts
from unroll_jax.train.tasks.text.data import TEXTS


def test_links_to_folders_are_followed_but_not_upwards(tmp_path):
    for name in ("root/a", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_text("")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere")
    assert sorted(str(file.path) for file in files_below(tmp_path / "root")[0]) == [
        "a/1.png",
        "b/1.png",
    ]
    (tmp_path / "elsewhere/up").symlink_to(tmp_path / "root")
    assert_fails(files_below, tmp_path / "root", "links to a folder above it")


def test_equal_names_sizes_and_times_are_other_prepared_data(tmp_path):
    roots = []
    for name, content in (("a", "old"), ("b", "new"), ("c", "new")):
        root = tmp_path / name
        root.mkdir()
        (root / "1.txt").write_text(content)
        os.utime(root / "1.txt", (1, 1))
        roots.append(root)
    os.utime(roots[2] / "1.txt", (2, 2))
    keys = [fingerprint_files(root.iterdir(), root=root) for root in roots]
    assert keys[0] != keys[1] == keys[2]


def test_files_that_may_not_be_listed_are_an_error(tmp_path, monkeypatch):
    (tmp_path / "train/neg").mkdir(parents=True)
    (tmp_path / "train/neg/0_3.txt").write_text("bad")
    fingerprint = TEXTS["imdb"].fingerprint
    assert fingerprint(tmp_path)
    listed = Path.iterdir

    def forbidden(path):  # as permissions do not bind tests run by root
        if path == tmp_path / "train/neg":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(PermissionError, match="train/neg"):
        fingerprint(tmp_path)


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": read_object,
    "metrics.jsonl": read_metrics,
    "predictions.npz": lambda path: read_predictions(path.parent),
    "checkpoints/5/notes/metadata": lambda path: Checkpoints(
        path.parents[2], read_only=True
    ),
    "checkpoints/5/state/manifest.ocdbt": lambda path: Checkpoints(
        path.parents[2], read_only=True
    ),
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
    "images": lambda path: prepare_images(ImageConfig("image_folder", str(path))),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe_or_a_device(tmp_path, name, kind):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")

    def hang(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(20)
    try:
        assert_fails(
            READERS[name], path.parent if name.startswith("export") else path, ""
        )
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
