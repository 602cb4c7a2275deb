"""What the README says of sparse coding on the digits."""

import dataclasses
import json

import numpy as np
import pytest

from train.experiments import EXPERIMENTS
from train.main import fit


@pytest.mark.slow
def test_constrained_layers_descend_on_digits_and_are_better_under_noise_than_plain_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    config = dataclasses.replace(EXPERIMENTS["sparse-coding"].config, method="both")
    folders = fit(config, out=tmp_path / "runs", experiment="sparse-coding", log=lambda line: None)
    plain, constrained = (json.loads((folder / "evaluation.json").read_text()) for folder in folders)
    lost = [np.mean(list(evaluation["lost_layer_relative_error"].values())) for evaluation in (plain, constrained)]
    assert constrained["feasible"]
    assert not plain["feasible"]
    assert constrained["relative_error"]["0.0"] < 0.9 * plain["relative_error"]["0.0"] < 0.15
    assert constrained["relative_error"]["0.4"] < 0.9 * plain["relative_error"]["0.4"]
    assert lost[1] < 0.3 * lost[0]
    for name, least in (("ISTA", 0.5), ("FISTA", 0.4), ("linear map", 0.3)):
        assert plain["floors"][name]["0.0"] > least
