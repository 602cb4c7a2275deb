"""DUST and vision transformers as tasks of video: their samples, a run of each, and
the way back from it."""

import copy
import json
import math
import shutil

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import save_file

from tests.data.pretrained.test_vision import CONFIG, tensors
from tests.errors import one_line
from tests.train.commands import quiet, read
from tests.train.conftest import Clips
from unroll_jax.train import load
from unroll_jax.train.config.options import with_value
from unroll_jax.train.config.run import PrimalConfig
from unroll_jax.train.main import evaluate_again, fit
from unroll_jax.train.tasks.video.data import (
    Frames,
    Sequences,
    VideoSpec,
    frames_from,
    patch_sequences,
)
from unroll_jax.train.tasks.video.models import build_video_model
from unroll_jax.train.tasks.video.options import (
    DustOptions,
    VideoDustConfig,
    VideoViTConfig,
    ViTOptions,
)
from unroll_jax.train.tasks.video.task import make

LOAD = "unroll_jax.train.tasks.video.task.load"
FRAMES, SIDE, PATCH = 4, 160, 16
POSITIONS = (SIDE // PATCH) ** 2
COUNTS = {"train": 4, "validation": 2, "test": 3}  # windows
SMALL = {"steps": 6, "batch_size": 4, "validate_every": 3, "test_gammas": (0.0, 0.3)}
CONFIGS = {
    "video-dust": VideoDustConfig(
        **SMALL, model=DustOptions(num_layers=2, num_atoms=8)
    ),
    "video-vit": VideoViTConfig(
        **SMALL, model=ViTOptions(num_layers=2, dim=256, num_heads=2, hidden_dim=16)
    ),
}


class Windows(Clips):
    """Replaces `VideoData`: windows of 4 frames of 160 x 160 pixels, in patches of
    16 x 16."""

    def __init__(self, seed=0, contrast=1.0):
        rng, white = np.random.default_rng(seed), int(256 * contrast)
        self.frames, self.splits = {}, {}
        for split, count in COUNTS.items():
            frames = rng.integers(0, white, (count, FRAMES, SIDE, SIDE), np.uint8)
            patches = [patch_sequences(window, side=PATCH) for window in frames]
            self.frames[split], self.splits[split] = frames, np.concatenate(patches)
        deviation = float(np.std(self.splits["train"] / 255.0))
        self.spec = VideoSpec(deviation, FRAMES, PATCH**2, SIDE)

    def with_test(self, other):
        both = copy.copy(self)
        both.splits = {**self.splits, "test": other.splits["test"]}
        return both

    def read(self, split, numbers):
        return super().read(
            split, numbers if isinstance(numbers, slice) else np.asarray(numbers)
        )


DATA = Windows()


@pytest.fixture(scope="module", params=CONFIGS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOAD, lambda config, *, log: DATA)
        fit(CONFIGS[request.param], out=folder, experiment=request.param, log=quiet)
    return request.param, folder


def whole(frame):
    return frames_from(np.asarray(frame)[:, None], (SIDE, SIDE), side=PATCH)[0]


def test_frames_are_samples_in_order_and_sequences_again():
    samples = Frames(DATA, DATA.spec)
    assert (samples.count("test"), samples.positions) == (
        COUNTS["test"] * FRAMES,
        POSITIONS,
    )
    frames = np.concatenate(list(samples.examples("test", batch_size=2 * FRAMES)))
    expected = DATA.frames["test"].reshape(-1, SIDE, SIDE)
    assert_array_equal([whole(frame) for frame in frames], expected)
    assert_array_equal(samples.to_windows(frames), DATA.splits["test"])


@pytest.mark.slow
def test_a_run_comes_back_without_its_data(run):
    name, folder = run
    evaluation = read(folder / "evaluation.json")
    a_window = FRAMES if name == "video-vit" else POSITIONS
    assert evaluation["num_sequences"] == COUNTS["test"] * a_window
    deviation = 255.0 * math.sqrt(0.3 * DATA.spec.pixel_std)
    assert evaluation["noisy_rmse"]["0.3"] == pytest.approx(deviation, rel=0.01)
    assert math.isfinite(evaluation["rmse"]["0.3"])
    model, frames = load(folder), DATA.frames["test"][0]
    cleaned = model.predict(frames)
    assert (cleaned.shape, cleaned.dtype) == (frames.shape, np.uint8)
    samples = (Frames if name == "video-vit" else Sequences)(DATA, DATA.spec)
    window = samples.of_windows(patch_sequences(frames, side=PATCH))
    module = build_video_model(CONFIGS[name], DATA.spec, np.float32).module
    noisy = jax.numpy.asarray(window / np.float32(255.0))
    outputs = module.apply(model.params, noisy, record=lambda y: y)[-1]
    patches = samples.to_windows(np.asarray(outputs))
    expected = 255.0 * frames_from(patches, (SIDE, SIDE), side=PATCH)
    assert_allclose(cleaned, np.clip(expected, 0, 255), atol=0.51)


@pytest.mark.slow
def test_a_run_is_tested_on_other_video_at_its_noise(run, monkeypatch):
    _, folder = run
    original, other = read(folder / "evaluation.json"), Windows(seed=1, contrast=0.5)
    loaded = lambda config, *, log: other if config.root else DATA
    monkeypatch.setattr(LOAD, loaded)
    evaluate_again([str(folder), "--on-source", "video", "--on-root", "elsewhere.avi"])
    assert read(folder / "evaluation.json") == original
    (place,) = folder.glob("evaluation_on_elsewhere_*.json")
    evaluation = read(place)
    assert evaluation["tested_on"]["root"] == "elsewhere.avi"
    deviation = 255.0 * math.sqrt(0.3 * DATA.spec.pixel_std)
    assert evaluation["noisy_rmse"]["0.3"] == pytest.approx(deviation, rel=0.01)
    assert evaluation["rmse"]["0.3"] != original["rmse"]["0.3"]
    with one_line("on_root=x has no effect without --on-source"):
        evaluate_again([str(folder), "--on-root", "x"])


def test_layer_0_of_dust_is_learned_so_unbound():
    low = with_value(CONFIGS["video-dust"], "constraints.reference", 1e-3)
    assert make(low, DATA).num_layers == 2


@pytest.mark.slow
def test_a_pretrained_transformer_trains_and_comes_back(tmp_path, monkeypatch):
    """A folder of 768 = 3 x 256 entries, images of 32 x 32 pixels and one layer, whose
    positions are interpolated to frames of 160 x 160."""
    source, out = tmp_path / "vit", tmp_path / "run"
    source.mkdir()
    config = CONFIG | {"num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"hidden_size": 768, "intermediate_size": 8, "patch_size": PATCH}
    (source / "config.json").write_text(json.dumps(config | {"image_size": 32}))
    weights = tensors(768, 8, side=PATCH, positions=5, layers=1)
    save_file(weights, source / "model.safetensors")
    options = SMALL | {"steps": 1, "validate_every": 1, "method": "plain"}
    run = VideoViTConfig(
        **options,
        primal=PrimalConfig(1e-12, warmup_share=0.0),
        model=ViTOptions(pretrained=str(source)),
    )
    with monkeypatch.context() as patch:
        patch.setattr(LOAD, lambda config, *, log: DATA)
        fit(run, out=out, log=quiet)
    shutil.rmtree(source)
    model = load(out)
    params = model.params["params"]
    position = np.asarray(params["embeddings"]["position"])
    stored = weights["embeddings.position_embeddings"][0]
    assert position.shape == (101, 768)
    assert_allclose(position[0], stored[0], atol=1e-6)
    # the middle of the frame is the mean of the four squares
    middle = position[1:].reshape(10, 10, -1)[4:6, 4:6].mean((0, 1))
    assert_allclose(middle, stored[1:].mean(0), atol=1e-5)
    frame = DATA.frames["test"][0, 0]
    assert model.predict(frame).shape == (SIDE, SIDE)
