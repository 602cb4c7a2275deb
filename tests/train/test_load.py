"""The way back from a run or an export: the model without its data, pictures and videos through it, model cards."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import write_video
from tests.errors import assert_names, one_line
from tests.started import environment
from tests.train.commands import quiet, read
from tests.train.conftest import CLIPS, traced_task
from unroll_jax.train import load
from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.video import frames_from, patch_sequences
from unroll_jax.train.exporting import export
from unroll_jax.train.runs import read_config
from unroll_jax.train.system.files import SEAL
from unroll_jax.train.weights import read_export

pytestmark = pytest.mark.xdist_group("video-runs")
SIDE, LENGTH = 4, 4  # of the patches and sequences of `tests.train.conftest.Clips`


@pytest.fixture(scope="module")
def model(exported):
    return load(exported)


def denoised(config, params, frames):
    """Frames of a whole number of windows, by the network itself."""
    windows = np.split(frames, len(frames) // LENGTH)
    noisy = jnp.asarray(np.stack([patch_sequences(window, side=SIDE) for window in windows]) / 255.0, jnp.float32)
    outputs = jax.jit(jax.vmap(lambda noisy: traced_task(config, CLIPS).outputs(params, noisy, lambda y: y)[-1]))(noisy)
    cleaned = [frames_from(np.asarray(window), frames.shape[1:], side=SIDE) for window in outputs]
    return np.clip(255.0 * np.concatenate(cleaned), 0, 255)


@pytest.mark.parametrize("which", ["run", "export"])
def test_a_model_comes_back_without_its_data_and_is_as_good(both, exported, config, which, tmp_path, monkeypatch):
    monkeypatch.setattr("unroll_jax.train.tasks.video.load", lambda *_, **__: pytest.fail("data are read"))
    folder = both / "constrained"
    loaded, evaluation = load(folder if which == "run" else exported, log=quiet), read(folder / "evaluation.json")
    assert loaded.config == read_config(folder)[1] == config
    assert (loaded.card["experiment"], loaded.card["step"]) == ("video-ut", evaluation["best_step"])
    figures, _ = traced_task(config, CLIPS).evaluate(loaded.params, tmp_path)
    for name in ("rmse", "noisy_rmse", "parameters"):
        assert figures[name] == evaluation[name]


def test_frames_come_back_as_the_network_makes_them_however_many_there_are(model, config):
    time, place = np.arange(6)[:, None, None], np.arange(160)
    frames = (120 + 8 * time + 0.5 * place[None, :, None] - 0.3 * place).astype(np.uint8)
    cleaned = model.predict(frames)
    assert (cleaned.shape, cleaned.dtype) == (frames.shape, np.uint8)
    expected = denoised(config, model.params, np.concatenate([frames, frames[-1:], frames[-1:]]))[:6]
    np.testing.assert_allclose(cleaned, expected, atol=0.51)
    assert np.ptp(expected) > 30, "the case tells places apart"


def test_noise_is_that_of_its_seed_and_another_in_every_window(model):
    frames = np.full((8, 160, 160), 128, np.uint8)
    clean, one, again, other = (
        model.predict(frames, gamma=gamma, seed=seed).astype(int)
        for gamma, seed in ((0, 0), (0.3, 0), (0.3, 0), (0.3, 1))
    )
    np.testing.assert_array_equal(one, again)
    for first, second in ((one, clean), (other, clean), (one, other), (one[:4], one[4:])):
        assert np.abs(first - second).mean() > 1
    for options in ({"gamma": -1.0}, {"gamma": 0.1, "seed": -1}):
        assert_names(UserError, partial(model.predict, frames), options)


PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)).resize((90, 60))


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "CMYK"])  # others: tests/data/test_clips.py
def test_a_picture_of_any_size_and_colour_is_brought_to_grey(model, mode, tmp_path):
    picture = PICTURE.convert(mode)
    expected = model.predict(np.asarray(picture.convert("L").resize((160, 160), Image.Resampling.BILINEAR)))
    assert (expected.shape, expected.dtype) == ((160, 160), np.uint8)
    path = tmp_path / ("Picture.TIFF" if mode == "CMYK" else "Picture.PNG")
    picture.save(path)
    array = np.asarray(picture)
    sources = [path, str(path)]
    sources += [array, array[None]] * (mode != "CMYK")
    sources += [array[..., None], jnp.asarray(array)] * (mode == "L")
    for source in sources:
        np.testing.assert_array_equal(np.squeeze(model.predict(source)), expected)


def test_a_video_file_comes_back_frame_by_frame_as_its_frames_do(model, tmp_path):
    path = write_video(tmp_path / "grey.avi", 6)
    frames = np.broadcast_to(2 * np.arange(6, dtype=np.uint8)[:, None, None], (6, 160, 160))
    cleaned = model.predict(path)
    assert cleaned.shape == (6, 160, 160)
    for source in (frames, np.broadcast_to(frames[:, ::2, ::4, None], (6, 80, 40, 3)), list(frames)):
        np.testing.assert_array_equal(cleaned, model.predict(source))


REFUSED = {
    "no picture": (lambda folder: folder / "no.png", r"no\.png is not a file"),
    "a folder": (lambda folder: folder, "is not a file"),
    "half an image": (lambda folder: folder / "half.png", r"half\.png cannot be read as an image"),
    "floats": (lambda folder: np.zeros((160, 160)), r"uint8, from 0 to 255, .*got float64 \(160, 160\)"),
    "a row": (lambda folder: np.zeros(160, np.uint8), r"must be uint8 \(frames, height, width\)"),
    "five channels": (lambda folder: np.zeros((2, 4, 4, 5), np.uint8), r"with 1 to 4 channels, got shape \(4, 4, 5\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_picture_and_no_video_is_refused_in_a_line(model, tmp_path, case):
    PICTURE.save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:1000])
    source, words = REFUSED[case]
    with one_line(words):
        model.predict(source(tmp_path))


# The folder, its file, the new text of that or new facts in it, whether its checksum goes, and words of the error.
DAMAGE = {
    "half the facts": ("run", "model.json", "{", True, r"model\.json is damaged"),
    "facts of another model": ("run", "model.json", {"token_dim": 25}, True, "is of another model: .*"),
    "edited facts": ("run", "model.json", {"token_dim": 25}, False, r"model\.json was edited by hand"),
    "no exported facts": ("export", "config.json", {}, True, r"config\.json is damaged .*again"),
    "exported facts of another": ("export", "config.json", {"token_dim": 25}, True, "do not fit the model"),
    "edited exported facts": ("export", "config.json", {"token_dim": 25}, False, r"config\.json was edited by hand"),
}


def changed_by(change, content, unsealed):
    if isinstance(change, str):
        return change
    values = json.loads(content)
    facts = values.get("facts", values)
    if unsealed:
        del values[SEAL]
    if change:
        facts.update(change)
    else:
        facts.clear()
    return json.dumps(values)


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_refused_in_a_line_that_names_it(finished, exported, tmp_path, capfd, case):
    which, name, change, unsealed, words = DAMAGE[case]
    folder = finished if which == "run" else shutil.copytree(exported, tmp_path / "model")
    (folder / name).write_text(changed_by(change, (folder / name).read_text(), unsealed))
    with one_line(words, str(folder)):
        load(folder, log=quiet)
    assert capfd.readouterr().err == ""


def test_a_run_without_the_facts_of_its_model_is_refused_in_a_line(finished):
    (finished / "model.json").unlink()
    with one_line(r"has no model\.json"):
        load(finished, log=quiet)


def test_the_model_card_tells_task_data_constraints_and_figures(both, exported):
    description, card = read(exported / "config.json"), (exported / "README.md").read_text()
    evaluation = read(both / "constrained" / "evaluation.json")
    assert description["excess"] == description["validation"]["worst_excess"]
    excess = f"{abs(description['excess']):.1%} {'over' if description['excess'] > 0 else 'below'} its bound"
    sizes = ", ".join(f"{count:,} {split}" for split, count in description["found"]["sequences"].items())
    for words in (
        "# video-ut, step",
        "task: video, 1,152 parameters",
        f"data: photos: {sizes} sequences",
        f"feasible on the validation split (the layer furthest out is {excess})",
        f"RMSE {evaluation['rmse']['0.15']:.1f}",
        'frames = model.predict("clip.mp4")',
    ):
        assert words in card


@pytest.mark.usefixtures("in_memory")
def test_the_model_card_tells_what_is_not_feasible_not_constrained_and_not_known(finished, infeasible, both, tmp_path):
    log = []
    out = export(infeasible[0], tmp_path / "steep", log=log.append)
    assert read_export(out).card["feasible"] is False
    assert any("NOT feasible" in line for line in log)
    steep = (out / "README.md").read_text()
    assert re.search(r"NOT feasible on the validation split \(the layer furthest out is .*% over its bound\)", steep)
    out = export(both / "plain", tmp_path / "plain", log=quiet)
    assert "- constraints: none\n" in (out / "README.md").read_text()
    assert (read_export(out).card["feasible"], read_export(out).card["multipliers"]) == (None, None)
    (finished / "metrics.jsonl").write_text("")
    (finished / "evaluation.json").unlink()
    unknown = (export(finished, log=log.append) / "README.md").read_text()
    assert "not known to be feasible" in unknown
    assert "test split: not evaluated" in unknown
    assert any("whether they are feasible is not known" in line for line in log)


@pytest.mark.slow
def test_the_python_of_the_model_card_runs_from_an_installed_package(exported, tmp_path):
    """Only the wheel's files, away from the checkout: `train` is a folder of the package there, and not on the path."""
    root, folder = Path(__file__).resolve().parents[2], tmp_path / "installed"
    (card_python,) = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)
    card_python = card_python.replace('"FOLDER"', repr(str(exported))).partition("frames =")[0]
    shutil.copytree(root / "unroll_jax", folder / "unroll_jax", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"{card_python}\nimport unroll_jax\nprint(unroll_jax.__file__, model.card['experiment'])"
    printed = subprocess.check_output(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(PYTHONPATH=str(folder)), text=True
    )
    assert printed.splitlines()[-1] == f"{folder / 'unroll_jax' / '__init__.py'} video-ut"
