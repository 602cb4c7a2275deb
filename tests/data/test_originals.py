"""Files that cannot be reached, or under odd names and links: told in one line, or read as well as any others."""

import os
from pathlib import Path

import pytest

from tests.errors import assert_fails
from train.data import DataConfig, prepare
from train.data.fingerprint import fingerprint_files
from train.data.folders import files_below
from train.data.images import ImageConfig
from train.data.images import prepare as prepare_images
from train.data.text import TextConfig
from train.data.text import prepare as prepare_texts
from train.errors import UserError

CONFIGS = {
    "frames": (prepare, DataConfig("frames", "there")),
    "file": (prepare, DataConfig("file", "there")),
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


def test_a_folder_without_permission_is_no_empty_folder(monkeypatch, tmp_path):
    (tmp_path / "Test").mkdir()
    scan = os.scandir

    def forbidden(path):
        if str(path).endswith("Test"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    assert_fails(files_below, tmp_path, "Test cannot be listed (Permission denied)")


def test_links_to_folders_are_followed_and_those_to_a_folder_above_refused(tmp_path):
    for name in ("root/a", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_text("")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere")
    assert [path.relative_to(tmp_path / "root") for path in sorted(files_below(tmp_path / "root"))] == [
        Path("a/1.png"),
        Path("b/1.png"),
    ]
    (tmp_path / "elsewhere/up").symlink_to(tmp_path / "root")
    assert_fails(files_below, tmp_path / "root", "links to a folder above it")


@pytest.mark.parametrize(("name", "words"), [("a\udce9", "is not UTF-8"), ("a\nb", "control characters")])
def test_names_that_cannot_be_shown_are_refused(tmp_path, name, words):
    (tmp_path / name).write_text("")
    assert_fails(lambda root: fingerprint_files([root / name], root=root), tmp_path, ascii(name), words)
