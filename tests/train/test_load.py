"""The way back from a run or an export: the model without its data, pictures and
videos through it, model cards."""

import json
import re
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from tests.data.conftest import write_video
from tests.errors import assert_names, one_line
from tests.reference import compiled
from tests.train.commands import quiet, read
from tests.train.conftest import CLIPS, traced_task
from unroll_jax.train import load
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.core.evaluate import evaluate_trials
from unroll_jax.train.core.folder import read_config
from unroll_jax.train.exporting import export
from unroll_jax.train.loading import read_export
from unroll_jax.train.tasks.video.data import frames_from, patch_sequences
from unroll_jax.train.tasks.video.models import build_video_model

pytestmark = pytest.mark.xdist_group("video-runs")
SIDE, LENGTH = 4, 4  # of the patches and sequences of `tests.train.conftest.Clips`


@pytest.fixture(scope="module")
def model(exported):
    return load(exported)


def denoised(config, params, frames):
    """Frames of a whole number of windows, by the network itself."""
    windows = np.split(frames, len(frames) // LENGTH)
    patches = [patch_sequences(window, side=SIDE) for window in windows]
    noisy = np.float32(np.stack(patches) / 255.0)
    module = build_video_model(config, CLIPS.spec, np.float32).module

    @compiled
    @jax.vmap
    def last_layer(noisy):
        return module.apply(params, noisy, record=lambda y: y)[-1]

    outputs = last_layer(noisy)
    size = frames.shape[1:]
    cleaned = [frames_from(window, size, side=SIDE) for window in outputs]
    return np.clip(255.0 * np.concatenate(cleaned), 0, 255)


@pytest.mark.parametrize("which", ["run", "export"])
def test_a_model_without_its_data_is_as_good(
    both, exported, config, which, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "unroll_jax.train.tasks.video.task.load",
        lambda *_, **__: pytest.fail("data are read"),
    )
    folder = both / "constrained"
    loaded, evaluation = (
        load(folder if which == "run" else exported, log=quiet),
        read(folder / "evaluation.json"),
    )
    assert loaded.config == read_config(folder)[1] == config
    assert (loaded.card["experiment"], loaded.card["step"]) == (
        "video-ut",
        evaluation["best_step"],
    )
    task = traced_task(config, CLIPS)
    figures, readings = evaluate_trials(task, loaded.params)
    figures |= task.baselines(loaded.params, readings)
    for name in ("rmse", "noisy_rmse"):
        assert figures[name] == evaluation[name]


def test_frames_come_back_as_the_network_makes_them(model, config):
    time, place = np.arange(6)[:, None, None], np.arange(160)
    frames = (120 + 8 * time + 0.5 * place[None, :, None] - 0.3 * place).astype(
        np.uint8
    )
    cleaned = model.predict(frames)
    assert (cleaned.shape, cleaned.dtype) == (frames.shape, np.uint8)
    expected = denoised(
        config, model.params, np.concatenate([frames, frames[-1:], frames[-1:]])
    )[:6]
    assert_allclose(cleaned, expected, atol=0.51)
    assert np.ptp(expected) > 30, "the case tells places apart"


def test_noise_is_that_of_its_seed_and_window(model):
    frames = np.full((8, 160, 160), 128, np.uint8)
    clean, one, again, other = (
        model.predict(frames, gamma=gamma, seed=seed).astype(int)
        for gamma, seed in ((0, 0), (0.3, 0), (0.3, 0), (0.3, 1))
    )
    assert_array_equal(one, again)
    for first, second in ((one, clean), (one, other), (one[:4], one[4:])):
        assert np.abs(first - second).mean() > 1
    assert_names(UserError, partial(model.predict, frames), {"gamma": -1.0})


PICTURE = Image.fromarray(
    np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
).resize((90, 60))


def test_a_picture_is_resized_and_brought_to_grey(model, tmp_path):
    """Pictures of other modes are in tests/data/test_clips.py."""
    path, array = tmp_path / "Picture.PNG", np.asarray(PICTURE)
    grey = PICTURE.convert("L").resize((160, 160), Image.Resampling.BILINEAR)
    expected = model.predict(np.asarray(grey))
    assert (expected.shape, expected.dtype) == ((160, 160), np.uint8)
    PICTURE.save(path)
    for source in (path, str(path), array, array[None], jnp.asarray(array)):
        assert_array_equal(np.squeeze(model.predict(source)), expected)


def test_arrays_that_are_no_pictures_are_refused(model):
    for source, words in (
        (np.zeros((160, 160)), r"its pixels are float64, not uint8"),
        (np.zeros(160, np.uint8), r"its shape is \(\)"),
    ):
        with one_line(words):
            model.predict(source)


def test_a_video_file_comes_back_as_its_frames_do(model, tmp_path):
    path = write_video(tmp_path / "grey.avi", 6)
    levels = 2 * np.arange(6, dtype=np.uint8)[:, None, None]
    frames = np.broadcast_to(levels, (6, 160, 160))
    colours = np.broadcast_to(levels[..., None], (6, 80, 40, 3))
    cleaned = model.predict(path)
    assert cleaned.shape == (6, 160, 160)
    for source in (frames, colours, list(frames)):
        assert_array_equal(cleaned, model.predict(source))


# The folder, its file, the new text of that (None deletes it) or new facts in it, and
# words of the error.
DAMAGE = [
    ("run", "model.json", None, r"has no model\.json"),
    ("run", "model.json", {"token_dim": 25}, "is of another model: .*"),
    ("export", "config.json", {"token_dim": 25}, "do not fit the model"),
]


@pytest.mark.parametrize(("which", "name", "change", "words"), DAMAGE)
def test_a_damaged_folder_is_refused_by_name(
    finished, exported, tmp_path, capfd, which, name, change, words
):
    copied = lambda: shutil.copytree(exported, tmp_path / "model")
    folder = finished if which == "run" else copied()
    values = read(folder / name)
    (folder / name).unlink()
    if change is not None:
        (values if which == "run" else values["facts"]).update(change)
        (folder / name).write_text(json.dumps(values))
    with one_line(words, str(folder)):
        load(folder, log=quiet)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("in_memory")
def test_the_model_card_says_what_is_not_feasible(
    both, exported, finished, infeasible, tmp_path
):
    rmse = read(both / "constrained" / "evaluation.json")["rmse"]["0.15"]
    assert f"RMSE {rmse:.1f}" in (exported / "README.md").read_text()
    out = export(infeasible[0], tmp_path / "steep", log=quiet)
    assert read_export(out).card["feasible"] is False
    assert "NOT feasible on the validation split" in (out / "README.md").read_text()
    (finished / "metrics.jsonl").write_text("")
    (finished / "evaluation.json").unlink()
    unknown = (export(finished, log=quiet) / "README.md").read_text()
    assert "not known to be feasible" in unknown


def test_the_python_of_the_model_card_loads_the_model(exported):
    (code,) = re.findall(
        r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL
    )
    names = {}
    exec(code.replace('"FOLDER"', repr(str(exported))).partition("frames =")[0], names)
    assert names["model"].card["experiment"] == "video-ut"
