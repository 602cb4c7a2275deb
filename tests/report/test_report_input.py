"""Every bad input ends in one line that names the file and the way out."""

import json
from pathlib import Path

import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report import write
from unroll_jax.train.report.constrained import video

pytestmark = pytest.mark.usefixtures("without_drawing")


def _refusal(folders, out) -> str:
    with pytest.raises(UserError) as caught:
        write(video, folders, out, log=lambda _: None)
    message = str(caught.value)
    assert "\n" not in message
    return message


def _edit(folder: Path, **changes) -> Path:
    path = folder / "evaluation.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "removed"}))
    return folder


def test_no_folder_is_refused(tmp_path):
    assert "at least one run folder" in _refusal([], tmp_path / "out")


def test_missing_folder_is_refused(tmp_path):
    assert f"{tmp_path / 'none'} does not exist" in _refusal([tmp_path / "none"], tmp_path / "out")


def test_folder_that_is_no_run_is_refused(tmp_path):
    assert "is no run folder" in _refusal([tmp_path], tmp_path / "out")


def test_run_given_twice_is_refused(make_run, tmp_path):
    folder = make_run()
    assert "given twice" in _refusal([folder, folder / ".." / folder.name], tmp_path / "out")


def test_run_without_evaluation_is_told_to_evaluate(make_run, tmp_path):
    folder = make_run()
    (folder / "evaluation.json").unlink()
    assert f"run `unroll-jax evaluate {folder}`" in _refusal([folder], tmp_path / "out")


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl"])
def test_run_that_lacks_a_file_is_refused(make_run, tmp_path, name):
    folder = make_run()
    (folder / name).unlink()
    assert f"has no {name}" in _refusal([folder], tmp_path / "out")


@pytest.mark.parametrize("name", ["config.json", "status.json", "evaluation.json"])
@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[1, 2]", b"\xff\xfe{"])
def test_damaged_json_is_named(make_run, tmp_path, name, content):
    folder = make_run()
    (folder / name).write_bytes(content)
    assert f"{folder / name} is damaged" in _refusal([folder], tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rmse": "removed"}, "lacks 'rmse'"),
        ({"method": "plain"}, "method 'plain' is unknown, must be one of erm, deep_supervision, constrained"),
        ({"num_layers": 4}, "layer_losses must hold 5 numbers for 4 layers, got 4"),
        ({"num_layers": "three"}, "num_layers must be a positive integer"),
        ({"mean_ratio": [0.9]}, "mean_ratio must hold 3 numbers"),
        ({"layers": [0, 10]}, "layers must hold 4 numbers for 3 layers"),
        ({"rmse": {"0.1": 3.0}}, "the same test gammas"),
        ({"rmse": {}, "noisy_rmse": {}}, "at least one"),
        ({"bounds": ["a", "b", "c", "d"]}, "could not convert"),
        ({"ratio_histogram": {"edges": [0, 1, 2], "counts": [[1], [1], [1]]}}, "ratio_histogram must hold 3 rows"),
        ({"ratio_histogram": {"counts": []}}, "missing 'edges'"),
        ({"train_gamma": {}}, "is damaged"),
    ],
)
def test_evaluation_of_the_wrong_form_is_named(make_run, tmp_path, changes, words):
    message = _refusal([_edit(make_run(), **changes)], tmp_path / "out")
    assert words in message
    assert "evaluation.json" in message


def test_damaged_metrics_line_is_named_by_its_number(make_run, tmp_path):
    folder = make_run()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*lines[:2], '{"kind": "train"\n', *lines[3:]]))
    assert "metrics.jsonl is damaged in line 3" in _refusal([folder], tmp_path / "out")


def test_metrics_of_another_depth_are_refused(make_run, tmp_path):
    folder, deeper = make_run(), make_run(num_layers=7)
    (folder / "metrics.jsonl").write_bytes((deeper / "metrics.jsonl").read_bytes())
    assert "damaged in line 1 (violations and multipliers must hold 4" in _refusal([folder], tmp_path / "out")


def test_unfinished_last_line_of_a_killed_run_is_left_out(make_run, tmp_path):
    folder, pages = make_run(), []
    for unfinished in ("", '{"kind": "train", "step": 61, "lo'):
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(unfinished)
        write(video, [folder], tmp_path / "out", log=lambda _: None)
        pages.append((tmp_path / "out" / "index.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"evaluation": {"experiment": "text-ut"}}, "differ in experiment"),
        ({"config": {"data": {"source": "frames", "root": "/a/ped2.tar"}}}, "frames (ped2.tar)"),
        ({"evaluation": {"num_sequences": 12}}, "differ in number of test sequences"),
        ({"evaluation": {"test_gammas": [0.0, 0.15]}}, "differ in test gammas"),
        ({"evaluation": {"ratio_histogram": {"edges": [0, 1, 2], "counts": [[1, 1]] * 3}}}, "different edges"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(make_run, tmp_path, overrides, words):
    assert words in _refusal([make_run("erm"), make_run("constrained", **overrides)], tmp_path / "out")


def test_runs_tested_on_other_clips_are_refused(make_run, tmp_path):
    folder = make_run("erm")
    noisy = json.loads((folder / "evaluation.json").read_text())["noisy_rmse"]
    other = make_run("constrained", evaluation={"noisy_rmse": {gamma: 1.1 * value for gamma, value in noisy.items()}})
    assert "not tested on the same noisy clips" in _refusal([folder, other], tmp_path / "out")


def test_output_that_is_a_file_is_refused(make_run, tmp_path):
    (tmp_path / "out").write_text("")
    assert "cannot write the report" in _refusal([make_run()], tmp_path / "out")
