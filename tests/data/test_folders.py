"""Folders that may not be listed are no empty ones."""

import errno
import os
from pathlib import Path

import pytest

from train.data.folders import files_below, require_listable
from train.data.frames import fingerprint_frames
from train.data.text.imdb import fingerprint_imdb
from train.errors import UserError


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
        fingerprint_frames(tmp_path)


@pytest.mark.parametrize("place", [".", "train/neg"])
def test_reviews_that_may_not_be_listed_are_not_taken_for_none(tmp_path, forbidden, place):
    if place != ".":
        (tmp_path / "train" / "neg").mkdir(parents=True)
        (tmp_path / "train" / "neg" / "0_3.txt").write_text("bad")
    require_listable(tmp_path)
    forbidden(tmp_path / place)
    with pytest.raises(UserError, match=r"cannot be listed \(Permission denied\)"):
        fingerprint_imdb(tmp_path)
