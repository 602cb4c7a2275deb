import subprocess
import sys
import tarfile

import pytest

from tests.errors import one_line
from tests.train.commands import refused
from unroll_jax.train.config.data import DataConfig
from unroll_jax.train.data.media import open_media
from unroll_jax.train.data.prepare import resolve_source
from unroll_jax.train.data.video import SOURCES


def test_a_tilde_in_the_root_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "clips").mkdir()
    assert resolve_source(SOURCES, DataConfig(source="video", root="~/clips"))[1] == tmp_path / "clips"


@pytest.mark.parametrize(
    ("root", "words"), [("a b.csv", "in {here}"), ("/a b.csv", "exist; give"), ("x" * 300, "255 bytes")]
)
def test_a_root_that_is_not_there_is_told_with_the_folder_that_it_was_looked_for_in(monkeypatch, tmp_path, root, words):
    monkeypatch.chdir(tmp_path)
    with one_line(words.format(here=tmp_path), "data.root"):
        resolve_source(SOURCES, DataConfig("video", root))


def test_a_name_that_is_too_long_is_not_told_as_a_full_disk(tmp_path):
    archive, name = tmp_path / "clips.tar", "a" * 300
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo(f"{name}/001.png"))
    with one_line("too long; shorten it"), open_media(archive, print):
        pass


def test_the_place_of_prepared_data_is_named_once(monkeypatch, tmp_path, capsys):
    (tmp_path / "taken").touch()
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "taken"))
    assert refused(capsys, "prepare", "photos").count("UNROLL_PREPARED") == 1


def test_the_options_of_data_are_known_without_what_reads_them():
    code = (
        "import sys, train.config.data; print(sorted({'numpy', 'jax', 'tensorflow_datasets', 'av'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
