"""What the README says of the digits: three ways to train one OptEq, each as good as the others."""

import dataclasses
import json

import pytest

from unroll_jax.train.experiments import EXPERIMENTS
from unroll_jax.train.main import fit


@pytest.mark.slow
def test_opteq_knows_97_percent_of_the_digits_however_it_is_trained(tmp_path, monkeypatch):
    """Of 400 digits, with one seed: the means over seeds are above 97% and within half a point."""
    monkeypatch.setenv("UNROLL_PREPARED", str(tmp_path / "prepared"))
    config, accuracies = EXPERIMENTS["image-opteq"].config, {}
    for way in ("implicit", "unrolled", "averaged"):
        network = dataclasses.replace(config.network, way=way)
        trained = dataclasses.replace(config, network=network)
        (folder,) = fit(trained, out=tmp_path / way, experiment="image-opteq", log=lambda line: None)
        accuracies[way] = json.loads((folder / "evaluation.json").read_text())["accuracy"]
    assert min(accuracies.values()) >= 0.965, accuracies
    assert max(accuracies.values()) - min(accuracies.values()) <= 0.015, accuracies
