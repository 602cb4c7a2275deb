"""Predictions of every kind of run for pictures and clips, by the command."""

import functools
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from tests.sparse_coding.conftest import small as small_codes
from tests.sparse_coding.conftest import task_of
from tests.supervised.conftest import Fields, Stripes, small
from tests.supervised.test_certified import SMALL as CERTIFIED
from tests.tasks import drawn
from tests.train.commands import refused
from tests.train.conftest import CLIPS
from unroll_jax.train import Model
from unroll_jax.train.__main__ import main
from unroll_jax.train.tasks.certified import task as certified
from unroll_jax.train.tasks.images import task as images
from unroll_jax.train.tasks.video import task as video

TASKS = {
    "images": lambda config: images.make(small("image-opteq"), Stripes()),
    "scenes": lambda config: images.make(small("segment-fcn"), Fields()),
    "certified": lambda config: certified.make(CERTIFIED, Stripes()),
    "codes": lambda config: task_of(small_codes()),
    "video": lambda config: video.make(config, CLIPS),
}


@functools.cache
def model_of(name, config):
    task = TASKS[name](config)
    return Model(task, drawn(task), {})


@pytest.fixture
def model(request, config, monkeypatch):
    """A model as it is drawn, in place of that of a run."""
    model = model_of(request.param, config)
    monkeypatch.setattr("unroll_jax.train.predict.load", lambda folder: model)
    monkeypatch.setattr("unroll_jax.train.predict._config_of", lambda f: model.config)
    return model


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        pixels = generator.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


def predicted(out):
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("model", ["images", "certified"], indirect=True)
def test_pictures_have_a_class_with_probabilities_and_a_radius(
    model, pictures, tmp_path, capsys
):
    files = sorted(map(str, pictures.iterdir()))
    command = ["predict", str(tmp_path / "run"), "--file"]
    assert main([*command, str(pictures)]) == 0
    table = capsys.readouterr().out
    out = tmp_path / "out"
    assert main([*command, *files, "--out", str(out)]) == 0
    rows = predicted(out / "predictions.jsonl")
    for file, row, one in zip(files, rows, model.predict(files), strict=True):
        assert (row["file"], row["label"]) == (file, one.label)
        shares = [*row["probabilities"].values()]
        assert_allclose(shares, one.probabilities, rtol=1e-6)
        assert all(f"{share:.3f}" in table for share in shares)
        assert row.get("radius") == getattr(one, "radius", None)
    message = refused(capsys, *command, *files, "--out", str(out))
    assert "holds files; pass another folder, or --overwrite" in message
    assert main([*command, *files, "--out", str(out), "--overwrite"]) == 0


@pytest.mark.parametrize("model", ["scenes", "codes", "video"], indirect=True)
def test_pictures_that_come_out_are_in_a_folder(model, pictures, tmp_path):
    files = sorted(map(str, pictures.iterdir()))
    run = tmp_path / "run"
    assert main(["predict", str(run), "--file", *files]) == 0
    out = run / "predictions"
    for file, row in zip(files, predicted(out / "predictions.jsonl"), strict=True):
        expected = model.predict(file)
        if hasattr(expected, "code"):
            assert_allclose(row["code"], expected.code, rtol=1e-6)
            expected = expected.image
        with Image.open(out / row["picture"]) as picture:
            assert_array_equal(np.asarray(picture), expected)


@pytest.mark.parametrize("model", ["images"], indirect=True)
def test_a_run_on_pictures_takes_files_of_pictures_without_noise(
    model, tmp_path, capsys
):
    (tmp_path / "text.txt").write_text("words")
    for words, message in (
        (["--text", "words"], "is a run on pictures or clips; give them by --file"),
        (["--file", str(tmp_path / "text.txt")], "cannot be read as an image"),
        (
            ["--file", str(tmp_path / "text.txt"), "--gamma", "0.5"],
            "--gamma 0.5 has no effect on a run of image-opteq, which has no noise",
        ),
    ):
        assert message in refused(capsys, "predict", str(tmp_path / "run"), *words)
