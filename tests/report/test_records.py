"""Runs are read, checked and grouped. Damage ends in one line that names the file
and the way out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.report.conftest import grouped
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.report.records import read_runs


def error_of(folders):
    with pytest.raises(UserError) as caught:
        _ = [run.by_layer("train", "violations") for run in read_runs(folders)]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folders_that_are_no_evaluated_runs_are_named(make_run, tmp_path):
    run, bare = make_run(), make_run(name="bare")
    assert f"{tmp_path / 'none'} does not exist" in error_of([tmp_path / "none"])
    assert "is not a run folder" in error_of([tmp_path])
    assert "given twice" in error_of([run, run / ".." / run.name])
    (bare / "evaluation.json").unlink()
    assert f"run `unroll-jax evaluate {bare}`" in error_of([bare])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"a": 1'),
        ("status.json", b"[1, 2]"),
        ("evaluation.json", b"\xff\xfe{"),
        ("metrics.jsonl", None),  # of another depth
    ],
)
def test_damage_is_named(make_run, name, content):
    folder = make_run()
    content = content or (make_run(num_layers=7) / name).read_bytes()
    (folder / name).write_bytes(content)
    assert f"{folder / name} is damaged" in error_of([folder])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"evaluation": {"experiment": "text-ut"}}, "differ in experiment"),
        ({"evaluation": {"test_gammas": [0.0, 0.15]}}, "differ in test_gammas"),
        ({"evaluation": {"num_sequences": 12}}, "differ in num_sequences"),
        ({"evaluation": {"noise": "variance"}}, "differ in noise"),
        ({"config": {"data": {"source": "frames", "root": "/a/ped2.tar"}}}, "frames"),
    ],
)
def test_runs_that_cannot_be_compared_are_named(make_run, overrides, words):
    assert words in error_of([make_run("plain"), make_run("constrained", **overrides)])


def test_configs_that_differ_beyond_the_seed_are_not_averaged(make_run):
    folders = [
        make_run(
            "constrained",
            seed=seed,
            name=f"c{alpha}-{seed}",
            config={"constraints": {"alpha": alpha}},
        )
        for alpha in (0.1, 0.3)
        for seed in (0, 1)
    ]
    moved = make_run(
        "plain",
        name="e0",
        config={"data": {"source": "photos", "prepared": "/elsewhere"}},
    )
    folders += [moved, make_run("plain", seed=1), make_run("plain", num_layers=5)]
    three, five = grouped(folders)
    labels = [
        (one.method, one.label, [run.evaluation["seed"] for run in one.runs])
        for one in three.variants
    ]
    assert labels == [
        ("plain", "", [0, 1]),
        ("constrained", "alpha 0.1", [0, 1]),
        ("constrained", "alpha 0.3", [0, 1]),
    ]
    assert five.num_layers == 5


@pytest.mark.parametrize("order", [1, -1])
def test_methods_are_compared_where_their_configurations_agree(make_run, order):
    plain = [
        make_run("plain", name=name, config={"primal": {"name": name}})
        for name in ("adam", "muon")
    ]
    weights = make_run(
        "deep_supervision", config={"layer_weights": [0.3], "primal": {"name": "adam"}}
    )
    enforced = make_run("constrained", config={"primal": {"name": "muon"}})
    (setting,) = grouped([*plain, weights, enforced][::order])
    assert [other.title for _, other in setting.pairs()] == [
        "plain (name muon)",
        "deep supervision",
    ]


@pytest.mark.parametrize(
    ("changes", "layer", "margin"),
    [
        ({}, 2, -0.25),
        ({"form": "ratio", "violations": [None, 0.1, -0.2, -0.3]}, 1, -0.1),
        (
            {"form": "log_ratio_of_means", "violations": [None, 0.1, -0.2, -0.3]},
            1,
            1 - np.exp(0.1),
        ),
    ],
)
def test_margins_are_shares_of_the_bound_in_every_form(
    make_run, changes, layer, margin
):
    usual = {"layer_losses": [4.0, 3.0, 2.5, 1.0], "bounds": [5.0, 4.0, 2.0, 2.0]}
    usual["violations"] = [-1.0, -1.0, 0.5, -1.0]
    (setting,) = grouped([make_run(evaluation=usual | changes)])
    margins = setting.variants[0].runs[0].margins()
    assert np.nanargmin(margins) == layer
    assert_allclose(np.nanmin(margins), margin, rtol=1e-6)
