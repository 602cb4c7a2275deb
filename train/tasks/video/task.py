"""Video denoising: unrolled transformers on sequences of patches, plain and under
descent constraints."""

import dataclasses
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unroll_jax.models import ViTConfig

from ...config.errors import UserError, require_extra
from ...core.evaluate import noise_trials
from ...core.task import Log, NoData, Params, Row, Task, Trial
from ...data.clips import SPLITS
from ...data.pretrained.vision import PretrainedViT
from ...sharding import keep_rows
from ...system.distributed import weights_checksum
from ..common import (
    add_noise,
    check_noise,
    check_reference,
    feasibility_words,
    logged,
    on_batches,
    to_unit,
    train_batches,
    with_reference,
)
from .data import (
    BATCH_SIZE,
    Frames,
    Sequences,
    VideoSpec,
    cleaned_frames,
    disturbed_windows,
    frames_of,
    load,
)
from .models import build_video_model, floors, load_pretrained
from .options import (
    INPUT_LOSS,
    REFERENCE,
    VideoRunConfig,
    VideoSource,
    disturbances,
)

SCORE = "rmse"
DISTURBED = f"disturbed_{SCORE}"

Clips = Float[Array, "batch frames pixels"]


class Noisy(NamedTuple):
    """A batch with its noise: pixels in [0, 1], and the same with noise."""

    clean: Clips
    noisy: Clips


def open_task(options: VideoRunConfig, log: Log) -> Task:
    """Returns the task on the data of its options, prepared on first use."""
    require_extra("video")  # evaluation has a floor of scikit-image
    data = load(options.data, log=log)
    return logged(
        options, make(options, data, load_pretrained(options, data.spec, log)), log
    )


def rebuild(options: VideoRunConfig, spec: Row) -> Task:
    """Returns the task of `Task.spec` without data, to predict."""
    rest = dict(spec)
    vit = rest.pop("vit", None)
    pretrained = None if vit is None else PretrainedViT(ViTConfig(**vit), {})
    return make(options, NoData(VideoSpec.from_json(rest)), pretrained)


def make(
    options: VideoRunConfig, data: Any, pretrained: PretrainedViT | None = None
) -> Task:
    """Returns the task: f_l is the mean over samples and tokens of 1/2 |x_t -
    Phi_l,t|^2, pixels in [0, 1].

    Samples are sequences of one patch position, whose tokens are frames, or frames,
    whose tokens are patches. Layer 0 is the model's first state: for the unrolled
    transformer the noisy input itself. Scores are RMSE over all pixels, on the 0-255
    scale, without clipping.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 4 and Appendix B.2.
    """
    spec: VideoSpec = data.spec
    dtype = jnp.promote_types(options.model.dtype, jnp.float32)
    variance = options.train_gamma * spec.pixel_std
    model = build_video_model(options, spec, dtype, pretrained)
    if model.reads_input:
        input_loss = 0.5 * spec.token_dim * variance
        options = with_reference(options, REFERENCE, input_loss / INPUT_LOSS)
        check_reference(options, input_loss)
    apply: Any = model.module.apply
    samples = (Frames if model.of_frames else Sequences)(data, spec)

    def examples(split: str, trial: Trial) -> Any:
        """Disturbances are of whole frames: blur crosses patches, and a frame is lost
        at all of its places."""
        if trial.disturbance is None:
            return samples.examples(split, batch_size=BATCH_SIZE)
        return disturbed_windows(data, split, spec, trial.disturbance, variance)

    def corrupt(batch: Any, trial: Trial, key: jax.Array) -> Noisy:
        if trial.disturbance is None:
            clean = to_unit(batch, dtype)
            return Noisy(clean, add_noise(clean, trial.gamma * spec.pixel_std, key))
        noisy, clean = map(samples.of_windows, batch)
        return Noisy(clean, noisy)

    def losses(params: Params, batch: Noisy, trial: Trial) -> Any:
        # Samples are averaged after the layers: over many devices, in one reduction
        # rather than one per layer.
        def record(y: Clips) -> Float[Array, "batch"]:
            return _sample_losses(keep_rows(y), batch.clean)

        noisy = keep_rows(batch.noisy)
        return apply(params, noisy, record=record).T, {}

    def read(params: Params, batch: Noisy, trial: Trial) -> Any:
        found, _ = losses(params, batch, trial)
        return {"losses": found, "noisy": _sample_losses(batch.noisy, batch.clean)}

    def rmse(squares: np.ndarray) -> float:
        """Converts 1/2 |error|^2 of a frame's patch to the root mean squared error of
        a pixel on the 0-255 scale."""
        mean = 2.0 * np.mean(squares, dtype=np.float64) / spec.token_dim
        return float(255.0 * np.sqrt(mean))

    def baselines(params: Params, readings: Any) -> Row:
        inputs = {"noisy_rmse": SCORE, f"input_{DISTURBED}": DISTURBED}
        figures: Row = {}
        for name, score in inputs.items():
            if score in task.trials:
                cases = task.trials[score].items()
                figures[name] = {
                    label: rmse(readings[trial]["noisy"]) for label, trial in cases
                }
        gammas = tuple(options.noise_levels)
        return figures | floors(data, float(options.train_gamma), gammas)

    def fingerprint() -> Row:
        return {
            "pixel_std": spec.pixel_std,
            "sequences": {split: data.num_examples(split) for split in SPLITS},
            "weights_checksum": weights_checksum(pretrained and pretrained.params),
        }

    def describe() -> Row:
        """Returns all that a model needs without the clips and the weights."""
        if pretrained is None:
            return spec.to_json()
        return spec.to_json() | {"vit": dataclasses.asdict(pretrained.config)}

    @on_batches
    def denoised(params: Params, batch: Any, gamma: Any, key: jax.Array) -> Clips:
        noisy = corrupt(batch, Trial(gamma), key).noisy
        return apply(params, noisy, record=lambda y: y)[-1]

    def predict(
        params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0
    ) -> np.ndarray:
        """Returns a picture or a video without its noise: uint8 (160, 160), or (frames,
        160, 160), in grey levels.

        It is a file, or an array uint8 (height, width) or (frames, height, width),
        optionally with channels last, and scaled as the training data. A picture counts
        as a video of equal frames. Noise of a strength ``gamma`` may be added.
        """
        check_noise(gamma, seed)
        frames, still = frames_of(inputs)
        key = jax.random.key(seed)

        def clean(window: np.ndarray, place: int) -> np.ndarray:
            of_window = jax.random.fold_in(key, place)
            return np.asarray(denoised(params, window, np.float32(gamma), of_window))

        whole = cleaned_frames(frames, samples, clean)
        return whole[0] if still else whole

    trial = Trial(float(options.train_gamma))
    trials = noise_trials(SCORE, options.noise_levels, trial)
    if several := disturbances(options.test_disturbances):
        trials[DISTURBED] = {
            one.label: trial._replace(disturbance=one) for one in several
        }
    # Muon's steps are the same in either basis.
    in_cosines = getattr(options.primal, "basis", "") == "cosine"
    turned = in_cosines and options.primal.name != "muon"
    task = Task(
        options=options,
        num_layers=model.num_layers,
        init=model.init,
        batches=train_batches(samples, options.batch_size),
        examples=examples,
        losses=losses,
        make=lambda other: make(other, data, pretrained),
        predict=predict,
        summary=summary,
        corrupt=corrupt,
        trial=trial,
        trials=trials,
        score=lambda reading, split: rmse(reading["losses"][:, -1]),
        baselines=baselines,
        read=read,
        size="num_sequences",
        bases=model.bases if turned else None,
        num_examples=None if isinstance(data, NoData) else samples.count("train"),
        examples_are="frames" if model.of_frames else "sequences",
        fingerprint=fingerprint,
        spec=describe,
        inner=(data, pretrained),
    )
    return task


def summary(evaluation: Row) -> str:
    """Returns the RMSE at the noise of training, of the input and of the linear layer,
    and feasibility."""
    gamma = str(float(evaluation["train_gamma"]))
    noisy = evaluation["noisy_rmse"][gamma]
    linear = evaluation["floors"]["linear layer"][gamma]
    return (
        f"RMSE {evaluation[SCORE][gamma]:.1f} against {noisy:.1f} of its input and"
        f" {linear:.1f} of one linear layer at gamma {evaluation['train_gamma']},"
        f" {feasibility_words(evaluation)}"
    )


def on_other_video(
    task: Task, source: VideoSource, root: str | None, log: Log
) -> tuple[Task, str]:
    """Returns the task of a run with the test split of another video, and the file for
    its evaluation. Denoisers without a network are still fitted to the run's train
    split.
    """
    options = task.options
    if not isinstance(options, VideoRunConfig):
        raise UserError(
            f"--on-source is for video, this run is of {options.task}; leave it out"
        )
    if root is None and source != "photos":
        raise UserError(
            f"--on-source {source} needs --on-root: the folder, archive or video file"
            " to test on"
        )
    other = dataclasses.replace(options.data, source=source, root=root)
    name = Path(root).resolve() if root else Path(source)
    file = f"evaluation_on_{name.stem}_{zlib.crc32(str(name).encode()):08x}.json"
    # whose unit of noise stays the train split's
    data, pretrained = task.inner
    data = data.with_test(load(other, log=log))
    changed = dataclasses.replace(options, data=other)
    return make(changed, data, pretrained), file


def _sample_losses(y: Clips, clean: Clips) -> Float[Array, "batch"]:
    return 0.5 * jnp.mean(jnp.sum((y - clean) ** 2, axis=-1), axis=-1)
