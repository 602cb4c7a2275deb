"""Video denoising: unrolled transformers on sequences of patches, plain and under descent constraints."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8, UInt32

from unroll_jax.perturbations import Perturbation, in_turn, layer_noise, lost_layer

from ..config.constrained import check_depth
from ..config.errors import UserError
from ..config.video import VideoRunConfig, VideoViTConfig
from ..data.clips import FRAME_SIZE, SPLITS
from ..data.pretrained.vit import PretrainedViT
from ..data.video import frames_of, load
from ..sharding.mesh import keep_rows
from ..system.digest import weights_checksum
from ..task import Log, Params, Row, SampleLosses, Validation
from .collapse import describe_collapse
from .common import (
    DataTask,
    check_batch_size,
    check_noise,
    constrained_training,
    disturbed_figures,
    feasibility_words,
    noise_figures,
    num_parameters,
    on_batches,
)
from .facts import VideoFacts
from .video_disturbances import video_disturbances
from .video_models import Computing, Patches, build_video_model
from .video_noise import add_noise, keyed_batches, to_unit
from .video_samples import cleaned_frames, samples_of
from .vit import given_facts, given_of, load_given

Clips = Float[Array, "batch frames pixels"]
GIVEN = "weights_checksum"  # of what is found: no figure of the data


class Noisy(NamedTuple):
    """A batch with what is random in a step: pixels in [0, 1], the same with noise, and keys of noise on layers."""

    clean: Clips
    noisy: Clips
    keys: UInt32[Array, "batch 2"] | None


class SplitLosses(NamedTuple):
    """Over a whole split at one noise level.

    Attributes:
      samples: (N, L + 1) loss of every sample at every layer.
      dead: (L + 1,) share of units that are 0 for every token of every sample.
      spread: (L + 1,) standard deviation of the outputs over samples, averaged over tokens and units.
      noisy: (N,) loss of every sample's input.
    """

    samples: np.ndarray
    dead: np.ndarray
    spread: np.ndarray
    noisy: np.ndarray


class VideoTask(DataTask[VideoRunConfig]):
    """f_l is the mean over samples and tokens of 1/2 |x_t - Phi_l,t|^2, pixels in [0, 1].

    Samples are sequences of one patch position, whose tokens are frames, or frames, whose tokens are patches. Layer 0
    is what the model begins with: for the unrolled transformer the noisy input itself.

    Source: Porras-Valenzuela, Hadou, Ribeiro, Section 4 and Appendix B.2.
    """

    def __init__(self, config: VideoRunConfig, data: Any, given: PretrainedViT | None = None):
        super().__init__(config, data)
        self.vit_weights, self._dtype = given, jnp.promote_types(config.model.dtype, jnp.float32)
        self._variance = config.train_gamma * data.pixel_std
        side, patch = getattr(data, "frame_side", FRAME_SIZE), math.isqrt(data.token_dim)
        sizes = Patches(data.num_tokens, (side // patch) ** 2, data.token_dim)
        computing = Computing(self._dtype, config.remat, config.unroll)
        self.model = build_video_model(config.model, sizes, computing, given)
        self.num_layers = self.model.num_layers
        if config.pretrained is not None:  # else the options say the depth, and were checked
            check_depth(config, self.num_layers)
        if self.model.reads_input:
            _check_reference(config, 0.5 * data.token_dim * self._variance)
        self.samples = samples_of(data, sizes.positions, frames=self.model.of_frames)
        count = self.samples.count("train")
        # Muon's steps are the same in either basis.
        turned = getattr(config.primal, "basis", "") == "cosine" and config.primal.name != "muon"
        self.training = constrained_training(
            config,
            num_layers=self.num_layers,
            steps_an_epoch=max(count // config.batch_size, 1),
            bases=self.model.bases if turned else None,
        )
        check_batch_size(config.batch_size, count, "frames" if self.model.of_frames else "sequences")
        self._read, self._clean = on_batches(self._layers), on_batches(self._denoised)

    def with_config(self, config: VideoRunConfig) -> Self:
        """The same by another configuration, on the same data and from the same weights."""
        return type(self)(config, self.data, self.vit_weights)

    def init(self, key: jax.Array) -> Params:
        """Parameters of the model."""
        return self.model.init(key)

    def batches(self, start_step: int, rows: np.ndarray | None) -> Iterator[Any]:
        """Samples of the train split."""
        size, seed = self.config.batch_size, self.config.seed
        return self.samples.batches("train", batch_size=size, seed=seed, start_step=start_step, rows=rows)

    def sample_noise(self, batch: UInt8[Array, "batch tokens pixels"], key: jax.Array) -> Noisy:
        """Noise of the strength of training."""
        clean = to_unit(batch, self._dtype)
        keys = None
        if self.config.layer_noise > 0.0:
            keys = jax.random.key_data(jax.random.split(jax.random.fold_in(key, 1), len(batch)))
        return Noisy(clean, add_noise(clean, self._variance, key), keys)

    def outputs(
        self, params: Params, noisy: Clips, record: Callable[[Clips], Any], perturb: Perturbation | None = None
    ) -> Any:
        """``record(output)`` of layers 0..L, stacked on a leading axis."""
        return self.model.module.apply(params, noisy, record=record, perturb=perturb)

    def losses(self, params: Params, batch: Noisy, probe: Any) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Returns the losses of every sample at every layer."""
        del probe
        # Samples are averaged after the layers: over many devices, in one reduction rather than one a layer.
        record = lambda y: _sample_losses(keep_rows(y), batch.clean)  # noqa: E731
        perturb = None
        if batch.keys is not None:
            perturb = layer_noise(jax.random.wrap_key_data(batch.keys), self.config.layer_noise)
        return self.outputs(params, keep_rows(batch.noisy), record, perturb).T, {}

    def split_losses(
        self, params: Params, split: str, gamma: float, *, noise: float = 0.0, lost: int = 0
    ) -> SplitLosses:
        """Losses and health of every layer on a split, with noise on layers and without layer ``lost``."""
        disturbed = (noise, lost) if noise > 0.0 or lost > 0 else ()
        losses, deads, spreads, inputs = [], [], [], []
        for batch, key in keyed_batches(self.samples, split):
            layers, noisy = self._read(params, batch, gamma * self.data.pixel_std, key, *disturbed)
            samples, dead, spread = layers
            losses.append(samples.T)
            inputs.append(noisy)
            deads.append(dead)
            spreads.append(spread)
        # A unit is dead if it is in every batch; the smallest share bounds that from above.
        spread = np.mean(spreads, axis=0)
        return SplitLosses(np.concatenate(losses), np.min(deads, axis=0), spread, np.concatenate(inputs))

    def validate(self, params: Params, multipliers: np.ndarray | None) -> Validation:
        """At the noise of training, on inputs and on layers."""
        reading = self.split_losses(params, "validation", self.config.train_gamma, noise=self.config.layer_noise)
        row = {"dead_share": reading.dead.tolist(), "spread": reading.spread.tolist()}
        wound = np.zeros(0) if multipliers is None else multipliers
        collapse = describe_collapse(reading.dead, reading.spread, reading.samples.mean(axis=0), wound)
        return Validation(reading.samples, row, collapse=collapse)

    def evaluate(self, params: Params, folder: Path) -> tuple[Row, np.ndarray]:
        """RMSE over all pixels of all sequences, on the 0-255 scale, without clipping, at every noise level.

        Beside it stand the floors: what needs no network reaches on the same noise.
        """
        from .video_floors import floors  # scikit-image takes half a second to load, and a prediction does without

        config = self.config
        by_gamma = {gamma: self.split_losses(params, "test", gamma) for gamma in config.noise_levels}
        validation = {gamma: self.split_losses(params, "validation", gamma).samples for gamma in config.noise_levels}
        at_training = by_gamma[float(config.train_gamma)].samples
        if config.layer_noise > 0.0:
            at_training = self.split_losses(params, "test", config.train_gamma, noise=config.layer_noise).samples

        def losses(params: Params, noisy: Clips, clean: Clips) -> Array:
            noisy, clean = self.samples.of_windows(noisy), self.samples.of_windows(clean)
            outputs = self.outputs(params, noisy, lambda y: _sample_losses(y, clean))
            return jnp.stack([_sample_losses(noisy, clean), outputs[-1]])

        def disturbed(noise: float, lost: int) -> float:
            reading = self.split_losses(params, "test", config.train_gamma, noise=noise, lost=lost)
            return self._rmse(reading.samples[:, -1])

        figures = {
            "method": config.method,
            **noise_figures(config),
            "layer_noise": config.layer_noise,
            "num_layers": self.num_layers,
            "seed": config.seed,
            "num_sequences": len(at_training),
            "rmse": {str(gamma): self._rmse(reading.samples[:, -1]) for gamma, reading in by_gamma.items()},
            "noisy_rmse": {str(gamma): self._rmse(reading.noisy) for gamma, reading in by_gamma.items()},
            "validation_rmse": {str(gamma): self._rmse(losses[:, -1]) for gamma, losses in validation.items()},
            **disturbed_figures(config, self.num_layers, "rmse", disturbed),
            **video_disturbances(config, self.data, losses, self._rmse, params),
            **floors(self.data, float(config.train_gamma), tuple(config.noise_levels)),
            "parameters": num_parameters(params),
        }
        return figures, at_training

    def data_fingerprint(self) -> Row:
        """Spread of the pixels, how many sequences there are, and a checksum of the weights of a given ViT."""
        sequences = {split: self.data.num_sequences(split) for split in SPLITS}
        given = None if self.vit_weights is None else self.vit_weights.params
        return {"pixel_std": self.data.pixel_std, "sequences": sequences, GIVEN: weights_checksum(given)}

    def model_spec(self) -> Row:
        """Sizes of tokens, the spread of clean pixels, which noise is in units of, and what a given ViT is like."""
        data, given = self.data, given_facts(self.vit_weights)
        sizes = {"pixel_std": data.pixel_std, "num_tokens": data.num_tokens, "token_dim": data.token_dim}
        return sizes if given is None else sizes | {"pretrained": given}

    def predict(self, params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0) -> np.ndarray:
        """A picture or a video without its noise: uint8 (160, 160), or (frames, 160, 160), in grey levels.

        Args:
          params: of the model.
          inputs: a picture or video: a file, or an array uint8 (height, width), (height, width, 3),
            (frames, height, width) or (frames, height, width, 3). It is brought to what the model was trained on: grey,
            160 x 160. A picture is taken for a video that stands still.
          gamma: strength of noise to add before, as in training.
          seed: of that noise.
        """
        check_noise(gamma, seed)
        frames, still = frames_of(inputs)
        variance, key = gamma * self.data.pixel_std, jax.random.key(seed)
        clean = lambda samples, place: self._clean(params, samples, variance, jax.random.fold_in(key, place))  # noqa: E731
        whole = cleaned_frames(frames, self.samples, clean)
        return whole[0] if still else whole

    def summary_line(self, evaluation: Row) -> str:
        """RMSE at the noise of training beside that of the input and of the linear layer, and feasibility."""
        gamma = str(float(evaluation["train_gamma"]))
        rmse, noisy, words = evaluation["rmse"][gamma], evaluation["noisy_rmse"][gamma], feasibility_words(evaluation)
        others = f"{noisy:.1f} of its input"
        if "floors" in evaluation:  # evaluations of before have none
            others += f" and {evaluation['floors']['linear layer'][gamma]:.1f} of one linear layer"
        return f"RMSE {rmse:.1f} against {others} at gamma {evaluation['train_gamma']}, {words}"

    def _layers(
        self, params: Params, batch: Array, variance: Array, key: jax.Array, noise: Any = None, lost: Any = None
    ) -> tuple[tuple[Array, Array, Array], Array]:
        """Losses, dead share and spread of all layers, one of them lost or all noisy; and the loss of the input."""
        clean = to_unit(batch)
        noisy = add_noise(clean, variance, key)
        perturb = None
        if noise is not None:
            perturb = in_turn(lost_layer(lost), layer_noise(jax.random.fold_in(key, 1), noise))

        def record(y: Clips) -> tuple[Array, Array, Array]:
            dead = jnp.mean(jnp.all(y == 0.0, axis=(0, 1)), dtype=jnp.float32)
            return _sample_losses(y, clean), dead, jnp.mean(jnp.std(y, axis=0))

        return self.outputs(params, noisy, record, perturb), _sample_losses(noisy, clean)

    def _denoised(self, params: Params, batch: Array, variance: Array, key: jax.Array) -> Clips:
        """The last layer's output."""
        noisy = add_noise(to_unit(batch), variance, key)
        return self.outputs(params, noisy, lambda y: y)[-1]

    def _rmse(self, losses: np.ndarray) -> float:
        """Converts 1/2 |error|^2 of a frame's patch to the root mean squared error of a pixel on the 0-255 scale."""
        return float(255.0 * np.sqrt(2.0 * np.mean(losses, dtype=np.float64) / self.data.token_dim))


def open_video(config: VideoRunConfig, log: Log) -> VideoTask:
    """The task on the data of its configuration."""
    data, given = load(config.data, log=log), None
    if isinstance(config, VideoViTConfig):
        across = data.frame_side // (side := math.isqrt(data.token_dim))
        given = load_given(config.model, grid=(across, across), side=side, log=log)
    return VideoTask(config, data, given)


def video_of(config: VideoRunConfig, facts: Row) -> VideoTask:
    """The task that `VideoTask.model_spec` describes, without its data."""
    sizes = {name: value for name, value in facts.items() if name != "pretrained"}
    return VideoTask(config, VideoFacts(**sizes), given_of(facts.get("pretrained")))


def _sample_losses(y: Clips, clean: Clips) -> Float[Array, "batch"]:
    return 0.5 * jnp.mean(jnp.sum((y - clean) ** 2, axis=-1), axis=-1)


def _check_reference(config: VideoRunConfig, input_loss: float) -> None:
    reference = config.constraints.reference
    if config.enforces and reference is not None and reference < input_loss:
        raise UserError(
            f"--constraints.reference {reference} is below the loss of the noisy input, about {input_loss:.2f} at "
            f"--train-gamma {config.train_gamma}, which no training can lower; raise it, or pass None"
        )
