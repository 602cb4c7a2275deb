"""Video denoising: unrolled transformers on sequences of patches, plain and under
descent constraints."""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from ..config.data import VideoSource
from ..config.errors import UserError, require_extra
from ..config.video import Disturbance, VideoRunConfig, disturbances
from ..core.task import Log, Params, Row, SampleLosses, Task
from ..data.clips import SPLITS
from ..data.video import VideoSpec, frames_of, load
from ..sharding.mesh import keep_rows
from .common import (
    LayeredTask,
    Trial,
    add_noise,
    check_noise,
    feasibility_words,
    on_batches,
    to_unit,
)
from .networks import check_reference
from .video_models import VideoReading, build_video_model, floors
from .video_samples import (
    Frames,
    Sequences,
    cleaned_frames,
    disturbed_windows,
    keyed_batches,
)

Clips = Float[Array, "batch frames pixels"]


class Noisy(NamedTuple):
    """A batch with its noise: pixels in [0, 1], and the same with noise."""

    clean: Clips
    noisy: Clips


class VideoTask(LayeredTask[VideoRunConfig]):
    """f_l is the mean over samples and tokens of 1/2 |x_t - Phi_l,t|^2, pixels in [0,
    1].

    Samples are sequences of one patch position, whose tokens are frames, or frames,
    whose tokens are patches. Layer 0 is the model's first state: for the unrolled
    transformer the noisy input itself. Scores are RMSE over all pixels, on the 0-255
    scale, without clipping.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 4 and Appendix B.2.
    """

    score, count, spec_type = "rmse", "num_sequences", VideoSpec

    @staticmethod
    def _load(config: VideoRunConfig, log: Log) -> Any:
        require_extra("video")  # evaluation has a floor of scikit-image
        return load(config.data, log=log)

    def __init__(
        self, config: VideoRunConfig, data: Any, spec: VideoSpec | None = None
    ):
        super().__init__(config, data, spec)
        self._dtype = jnp.promote_types(config.model.dtype, jnp.float32)
        self._variance = config.train_gamma * self.spec.pixel_std
        self.model = build_video_model(config, self.spec, self._dtype)
        self.num_layers = self.model.num_layers
        if self.model.reads_input:
            check_reference(config, 0.5 * self.spec.token_dim * self._variance)
        self.samples = (Frames if self.model.of_frames else Sequences)(data, self.spec)
        # Muon's steps are the same in either basis.
        turned = (
            getattr(config.primal, "basis", "") == "cosine"
            and config.primal.name != "muon"
        )
        self.training = self.train_on(
            None if data is None else self.samples.count("train"),
            examples="frames" if self.model.of_frames else "sequences",
            bases=self.model.bases if turned else None,
        )
        self._read, self._clean = on_batches(self._layers), on_batches(self._denoised)

    def held(self, split: str) -> Iterator[tuple[Any, jax.Array]]:
        """Yields samples of a split, each batch with the key of its noise."""
        return keyed_batches(self.samples, split)

    def sample_noise(
        self, batch: UInt8[Array, "batch tokens pixels"], key: jax.Array
    ) -> Noisy:
        """Draws noise of the strength of training."""
        clean = to_unit(batch, self._dtype)
        return Noisy(clean, add_noise(clean, self._variance, key))

    def outputs(
        self, params: Params, noisy: Clips, record: Callable[[Clips], Any]
    ) -> Any:
        """``record(output)`` of layers 0..L, stacked on a leading axis."""
        return self.model.module.apply(params, noisy, record=record)

    def losses(
        self, params: Params, batch: Noisy, probe: Any
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Returns the losses of every sample at every layer."""

        # Samples are averaged after the layers: over many devices, in one reduction
        # rather than one per layer.
        def record(y: Clips) -> Float[Array, "batch"]:
            return _sample_losses(keep_rows(y), batch.clean)

        return self.outputs(params, keep_rows(batch.noisy), record).T, {}

    def reading(self, params: Params, split: str, trial: Trial) -> VideoReading:
        """Returns the losses of every layer on a split, and of the input."""
        if trial.disturbance is not None:
            return self._disturbed(params, split, trial.disturbance)
        variance = trial.gamma * self.spec.pixel_std
        read = [
            self._read(params, batch, variance, key) for batch, key in self.held(split)
        ]
        losses, inputs = zip(*read, strict=True)
        return VideoReading(
            np.concatenate([samples.T for samples in losses]), np.concatenate(inputs)
        )

    def trials(self) -> dict[str, dict[str, Trial]]:
        """Returns the levels of noise, and the disturbances one by one at the noise
        of training."""
        gamma, several = (
            float(self.config.train_gamma),
            disturbances(self.config.test_disturbances),
        )
        disturbed = {one.label: Trial(gamma, disturbance=one) for one in several}
        return super().trials() | (
            {f"disturbed_{self.score}": disturbed} if disturbed else {}
        )

    def score_of(self, reading: VideoReading, split: str) -> float:
        """Returns the RMSE of the last layer."""
        return self._rmse(reading.losses[:, -1])

    def further_figures(
        self, params: Params, readings: Mapping[Trial, VideoReading]
    ) -> Row:
        """Returns the RMSE of inputs, and of denoisers without a network."""
        trials, disturbances = self.trials(), f"disturbed_{self.score}"
        inputs = {"noisy_rmse": trials[self.score]}
        if disturbances in trials:
            inputs[f"input_{disturbances}"] = trials[disturbances]
        return {
            **{
                name: {
                    label: self._rmse(readings[trial].noisy)
                    for label, trial in cases.items()
                }
                for name, cases in inputs.items()
            },
            **floors(
                self.data,
                float(self.config.train_gamma),
                tuple(self.config.noise_levels),
            ),
        }

    def data_fingerprint(self) -> Row:
        """Returns the deviation of pixels, and sizes of the splits."""
        sequences = {split: self.data.num_examples(split) for split in SPLITS}
        # of earlier runs
        return {
            "pixel_std": self.spec.pixel_std,
            "sequences": sequences,
            "weights_checksum": None,
        }

    def predict(
        self, params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0
    ) -> np.ndarray:
        """A picture or a video without its noise: uint8 (160, 160), or (frames, 160,
        160), in grey levels. It is a file, or an array uint8 (height, width) or
        (frames, height, width), optionally with channels last, and scaled as the
        training data. A picture counts as a video of equal frames. Noise of a strength
        ``gamma`` may be added.
        """
        check_noise(gamma, seed)
        frames, still = frames_of(inputs)
        variance, key = gamma * self.spec.pixel_std, jax.random.key(seed)

        def clean(samples: np.ndarray, place: int) -> np.ndarray:
            return self._clean(
                params, samples, variance, jax.random.fold_in(key, place)
            )

        whole = cleaned_frames(frames, self.samples, clean)
        return whole[0] if still else whole

    def summary_line(self, evaluation: Row) -> str:
        """RMSE at the noise of training, of the input and of the linear layer, and
        feasibility."""
        gamma = str(float(evaluation["train_gamma"]))
        rmse, noisy, words = (
            evaluation["rmse"][gamma],
            evaluation["noisy_rmse"][gamma],
            feasibility_words(evaluation),
        )
        others = (
            f"{noisy:.1f} of its input and"
            f" {evaluation['floors']['linear layer'][gamma]:.1f} of one linear layer"
        )
        return (
            f"RMSE {rmse:.1f} against {others} at gamma {evaluation['train_gamma']},"
            f" {words}"
        )

    def _layers(
        self, params: Params, batch: Array, variance: Array, key: jax.Array
    ) -> tuple[Array, Array]:
        """Losses of all layers, and of the input."""
        clean = to_unit(batch)
        noisy = add_noise(clean, variance, key)
        return self.outputs(
            params, noisy, lambda y: _sample_losses(y, clean)
        ), _sample_losses(noisy, clean)

    def _denoised(
        self, params: Params, batch: Array, variance: Array, key: jax.Array
    ) -> Clips:
        """Returns the last layer's output."""
        noisy = add_noise(to_unit(batch), variance, key)
        return self.outputs(params, noisy, lambda y: y)[-1]

    def _disturbed(
        self, params: Params, split: str, disturbance: Disturbance
    ) -> VideoReading:
        """Losses of inputs and of the last layer where whole frames are disturbed: blur
        crosses patches, and a frame is lost at all of its places.
        """

        @on_batches
        def measure(params: Params, batch: tuple[Array, Array]) -> Array:
            noisy, clean = map(self.samples.of_windows, batch)
            outputs = self.outputs(params, noisy, lambda y: _sample_losses(y, clean))
            return jnp.stack([_sample_losses(noisy, clean), outputs[-1]])

        batches = disturbed_windows(
            self.data, split, self.spec, disturbance, self._variance
        )
        inputs, last = np.concatenate(
            [measure(params, batch) for batch in batches], axis=1
        )
        return VideoReading(last[:, None], inputs)

    def _rmse(self, losses: np.ndarray) -> float:
        """Converts 1/2 |error|^2 of a frame's patch to the root mean squared error
        of a pixel on the 0-255 scale."""
        return float(
            255.0
            * np.sqrt(2.0 * np.mean(losses, dtype=np.float64) / self.spec.token_dim)
        )


def on_other_video(
    task: Task, source: VideoSource, root: str | None, log: Log
) -> tuple[VideoTask, str]:
    """Returns the task of a run with the test split of another video, and the file for
    its evaluation. Denoisers without a network are still fitted to the run's train
    split.
    """
    if not isinstance(task, VideoTask):
        raise UserError(
            f"--on-source is for video, this run is of {task.config.task}; leave it out"
        )
    if root is None and source != "photos":
        raise UserError(
            f"--on-source {source} needs --on-root: the folder, archive or video file"
            " to test on"
        )
    options = dataclasses.replace(task.config.data, source=source, root=root)
    name = Path(root).resolve() if root else Path(source)
    file = f"evaluation_on_{name.stem}_{zlib.crc32(str(name).encode()):08x}.json"
    # whose unit of noise stays the train split's
    data = task.data.with_test(load(options, log=log))
    return (
        VideoTask(dataclasses.replace(task.config, data=options), data, task.spec),
        file,
    )


def _sample_losses(y: Clips, clean: Clips) -> Float[Array, "batch"]:
    return 0.5 * jnp.mean(jnp.sum((y - clean) ** 2, axis=-1), axis=-1)
