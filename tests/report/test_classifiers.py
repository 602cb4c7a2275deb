"""Reports on runs of classifiers: scenes, confusion matrices, and the ranking."""

import dataclasses
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.errors import one_line
from tests.train.commands import quiet
from unroll_jax.train.core.folder import identity
from unroll_jax.train.core.metrics import Predictions, write_predictions
from unroll_jax.train.registry import EXPERIMENTS
from unroll_jax.train.report import make_report

NAMES = ("sky", "road")
COUNTS = ([[6, 1], [0, 1]], [[5, 2], [1, 0]])  # by seed
SCORES = (0.7, 0.5)


@pytest.fixture
def write_scenes(tmp_path):
    """``write(seed, state, images)``: a run of camvid-fcn."""

    def write(seed, state="finished", images=0):
        folder = tmp_path / f"{seed}-{state}-{images}"
        folder.mkdir()
        config = EXPERIMENTS["camvid-fcn"].config
        data = dataclasses.replace(config.data, root="scans/town")
        config = dataclasses.replace(config, seed=seed, data=data)
        evaluation = {
            "class_names": NAMES,
            "confusion": COUNTS[seed],
            "intersection_over_union": SCORES[seed],
            "accuracy": 0.75,
            "num_examples": 2,
            "best_step": 12,
        }
        row = {"kind": "train", "step": 1, "accuracy": 0.8}
        files = {
            "config.json": identity("camvid-fcn", config, {}),
            "status.json": {"state": state, "steps": 1, "messages": []},
            "evaluation.json": evaluation,
            "metrics.jsonl": row,
        }
        for name, value in files.items():
            (folder / name).write_text(json.dumps(value) + "\n")
        scenes = np.full((2, 4, 6, 3), images, np.uint8)
        labels = np.arange(48, dtype=np.uint8).reshape(2, 4, 6) % 2
        write_predictions(folder, Predictions(scenes, labels, 0 * labels))
        return folder

    return write


def test_scenes_and_matrices_are_shown_with_floors(write_scenes):
    report = make_report([write_scenes(seed) for seed in (0, 1)], log=quiet)
    ((_, (scenes, matrix, table)),) = report.sections
    shown = scenes.figure.axes
    assert [axes.get_title() for axes in shown[:3]] == [
        "scene",
        "labels (black: not counted)",
        "camvid-fcn on town",
    ]
    predicted = shown[2].images[0].get_array()
    assert np.ptp(predicted.reshape(-1, 3), axis=0).max() == 0.0, "one class is one"
    shares = matrix.figure.axes[0].images[0].get_array()
    assert_allclose(shares, [[100 * 11 / 14, 100 * 3 / 14], [50.0, 50.0]])
    rows = dict(table.rows)
    assert rows["mean IoU"] == "0.6 [0.5, 0.7]"
    # the most frequent class everywhere overlaps 7 of 8 of one class, 0 of the other
    assert report.verdict == [
        "Mean IoU (%): camvid-fcn on town 60.00.",
        "Mean IoU (%) without a network: majority class 43.75.",
    ]
    assert report.warnings == []


def test_runs_that_train_are_not_final_in_a_ranking(write_scenes):
    report = make_report([write_scenes(0, state="running")], log=quiet)
    assert report.verdict[0] == "Mean IoU (%): camvid-fcn on town 70.00 (not final)."
    (line,) = report.warnings
    assert "is not finished (state: running, 1 steps)" in line


def test_runs_on_other_scenes_are_not_compared(write_scenes):
    folders = [write_scenes(0), write_scenes(1, images=9)]
    path = folders[1] / "config.json"
    path.write_text(path.read_text().replace("camvid-fcn", "segment-other"))
    with one_line(
        "camvid-fcn on town, segment-other on town were tested on different scenes"
    ):
        make_report(folders, log=quiet)
