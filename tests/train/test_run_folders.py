"""A run folder in the experiment's place, its config.json as options of another run,
and --overwrite."""

import json
import shutil

import pytest

from tests.hostile import runs
from tests.train.commands import files_of, metrics_of, read, refused, status_of
from tests.train.conftest import CLIPS, RUN
from unroll_jax.train.__main__ import main
from unroll_jax.train.cli import configured
from unroll_jax.train.config.options import differences, to_json
from unroll_jax.train.config.run import FREE
from unroll_jax.train.core.folder import read_config
from unroll_jax.train.system.files import locked, read_object, strict_json

pytestmark = pytest.mark.xdist_group("video-runs")


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def cut_short(folder):
    shutil.rmtree(folder / "checkpoints" / "6")
    for name in ("status.json", "evaluation.json"):
        (folder / name).unlink()


def test_a_run_goes_on_by_the_name_of_its_folder(trained, tmp_path, capsys):
    assert main(["run", "run"]) == 0
    assert "run: finished already after 6 steps" in capsys.readouterr().out
    whole = metrics_of(trained)
    cut_short(trained)
    assert main(["run", "run/"]) == 0
    assert "going on from the checkpoint of step 4" in capsys.readouterr().out
    assert metrics_of(trained) == whole
    assert "depend on the end of a run" in refused(capsys, "run", "run", "--steps", "7")
    assert main(["run", "run", "--seed", "1", "--out", "again"]) == 0
    assert read_config(tmp_path / "again")[1].seed == 1
    assert metrics_of(trained) == whole


def test_overwrite_deletes_an_earlier_version_behind_a_link(
    trained, tmp_path, monkeypatch, capsys
):
    (trained / "notes.txt").write_text("of the old run")
    assert "seed was 0, is now 1; pass another --out, or --overwrite" in refused(
        capsys, *RUN, "--seed", "1"
    )
    values = read(trained / "config.json")
    del values["version"]
    (trained / "config.json").write_text(json.dumps(values))
    trained.rename(tmp_path / "disk")
    trained.symlink_to(tmp_path / "disk")
    assert main([*RUN, "--seed", "1", "--overwrite"]) == 0
    assert read_config(tmp_path / "disk")[1].seed == 1
    assert not (trained / "notes.txt").exists()
    assert status_of(trained)["steps"] == 6
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main([*RUN[:3], "~/run", *RUN[4:], "--seed", "1"]) == 0
    assert f"{tmp_path / 'run'}: finished already" in capsys.readouterr().out
    assert not (tmp_path / "~").exists()


def test_overwrite_deletes_nothing_that_a_command_is_refused_for(
    trained, monkeypatch, capsys
):
    export = trained / "export" / "config.json"
    export.parent.mkdir()
    export.write_text(
        '{"format": "unroll_jax 2", "experiment": "video-ut", "found": {}}'
    )
    kept = files_of(trained)
    with locked(trained):
        assert "another process is training run" in refused(capsys, *RUN, "--overwrite")
    assert "--out run is a run, and this trains" in refused(
        capsys, *RUN, "--method", "both", "--overwrite"
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            CLIPS, "splits", {**CLIPS.splits, "train": CLIPS.splits["train"][:2]}
        )
        assert "--batch-size must be at most the 2" in refused(
            capsys, *RUN, "--seed", "2", "--overwrite"
        )
    assert files_of(trained) == kept
    shutil.copytree(trained, trained / "plain", ignore=shutil.ignore_patterns("export"))
    kept, error = files_of(trained), refused(capsys, *RUN, "--overwrite")
    assert (
        "--overwrite would delete the runs run/plain too; move them away, or pass"
        " another --out" in error
    )
    assert files_of(trained) == kept
    shutil.rmtree(trained / "plain")
    assert main([*RUN, "--overwrite"]) == 0
    assert not export.exists(), "it is no run"


def test_both_methods_have_their_folders_before_the_first_step(
    trained, tmp_path, capsys
):
    folder = tmp_path / "two" / "constrained"
    words = runs.RUN.replace("--out run", "--out two")
    command = f"{words} --method both --seed 1".split()
    folder.parent.mkdir()
    trained.rename(folder)
    assert "seed was 0, is now 1" in refused(capsys, *command)
    (folder / "config.json").unlink()
    assert "two/constrained holds files but no config.json" in refused(capsys, *command)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("thesis.tex", "", "run holds files but no config.json"),
        (
            "config.json",
            '{"architectures": ["BertModel"]}',
            "run holds no run for --overwrite to delete",
        ),
        (
            "config.json",
            '{"format": "unroll_jax 2", "experiment": "a", "found": {}}',
            "run holds no run",
        ),
        ("config.json", "{", "config.json is damaged"),
    ],
)
def test_overwrite_leaves_folders_of_others(
    name, text, words, in_memory, tmp_path, capsys
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(text)
    assert words in refused(capsys, *RUN, "--overwrite")
    assert files_of(tmp_path) == {tmp_path / "run" / name: text.encode()}


def test_the_config_of_a_run_is_a_file_of_options(both):
    path = both / "constrained" / "config.json"
    config = configured("run", ["video-ut", "--config", str(path)])[1]
    before = read_config(path.parent)[1]
    lines = differences(to_json(before), to_json(config))
    assert lines == [f"config was None, is now {path}"]


@pytest.mark.slow
def test_a_run_resumes_with_the_free_options_it_had(in_memory, tmp_path):
    path = tmp_path / "run" / "config.json"
    assert main([*RUN, "--accumulate", "2", "--remat", "dots"]) == 0
    config = read_config(path.parent, free=True)[1]
    assert (config.accumulate, config.remat) == (2, "dots")
    config = read_config(path.parent)[1]
    assert (config.accumulate, config.remat) == (
        FREE["accumulate"],
        FREE["remat"],
    ), "an evaluation is free to choose"
    stored = path.read_text()
    assert main([*RUN, "--accumulate", "4"]) == 0
    assert path.read_text() == stored, (
        "a run that has ended is not trained with other values"
    )
    cut_short(path.parent)
    assert main(["run", "run", "--accumulate", "4"]) == 0
    changed = {**json.loads(stored), "accumulate": 4}
    assert read_object(path) == changed


def test_a_whole_number_beyond_64_bits_is_a_float():
    values = strict_json(
        b"[1000000000000000019884624838656, 18446744073709551615, -9223372036854775808]"
    )
    assert values == [1e30, 2**64 - 1, -(2**63)]
    assert list(map(type, values)) == [float, int, int]
