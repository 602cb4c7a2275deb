"""Sparse coding: LISTA towards the Lasso's solutions, plain and under descent constraints."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from unroll_jax.disturbances import dropped
from unroll_jax.models import LISTA
from unroll_jax.perturbations import Perturbation, in_turn, layer_noise, lost_layer

from ..config.disturbances import Disturbance
from ..config.errors import UserError
from ..config.sparse_coding import SparseCodingConfig
from ..data.codes import CodeBatch, from_text, load, to_grey, to_text
from ..data.pictures import picture_of
from ..data.splits import SPLITS
from ..sharding.mesh import keep_rows
from ..sharding.parts import POLICIES
from ..task import Log, Params, Row, SampleLosses, Validation
from .code_floors import floors
from .common import (
    NOISE_SEED,
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
from .disturbances import disturbance_figures, disturbed
from .facts import CodeFacts

# Images a batch of the evaluation: no gradient is kept, so more fit than in training.
BATCH_SIZE = 1000
WEIGHT_NOISE = 0.01


class Drawn(NamedTuple):
    """Images with noise, the codes to reach, those of layer 0, and a key of layer noise, a row an image."""

    signals: Float[Array, "batch pixels"]
    codes: Float[Array, "batch atoms"]
    start: Float[Array, "batch atoms"]
    keys: UInt32[Array, "batch 2"]


class Trial(NamedTuple):
    """Disturbances of a split: noise on images, noise on layers, the layer that is lost; 0 for none."""

    gamma: float = 0.0
    layer_noise: float = 0.0
    lost: int = 0


class Coded(NamedTuple):
    """The code of an image, float32 (atoms,), and the image that it stands for, uint8 (height, width)."""

    code: np.ndarray
    image: np.ndarray


class SparseCodingTask(DataTask[SparseCodingConfig]):
    """f_l is the mean over images of 1/2 |z_l - z*|^2, z* the Lasso's solution for the image without noise.

    Layer 0 is z_0: zeros, or noise.

    Source: Hadou, NaderiAlizadeh, Ribeiro, "Robust stochastically-descending unrolled networks" (2023), whose
    constraints are on the distance |z_l - z*|.
    """

    def __init__(self, config: SparseCodingConfig, data: Any):
        model = config.model
        super().__init__(config, data)
        self.num_layers = model.num_layers
        atoms, pixels = data.dictionary.shape
        self.model = LISTA(
            pixels,
            atoms,
            model.num_layers,
            sparsity=config.data.sparsity,
            dictionary_init=jax.nn.initializers.constant(data.dictionary),
            noise=None if model.weights == "ista" else WEIGHT_NOISE,
            remat=POLICIES[config.remat] or False,
            unroll=config.unroll,
        )
        check_batch_size(config.batch_size, data.num_examples("train"), "images")
        steps_an_epoch = max(data.num_examples("train") // config.batch_size, 1)
        self.training = constrained_training(config, num_layers=self.num_layers, steps_an_epoch=steps_an_epoch)
        self._apply: Callable[..., Any] = self.model.apply
        self._read, self._coded = on_batches(self._tried), on_batches(self._codes)
        self._read_disturbed = functools.cache(lambda one: on_batches(functools.partial(self._disturbed, one)))

    def init(self, key: jax.Array) -> Params:
        """Returns the weights of ISTA, for any key, or noise."""
        return dict(self.model.init(key, jnp.zeros((1, self.model.dim))))

    def sample_noise(self, batch: CodeBatch, key: jax.Array) -> Drawn:
        """Noise on images and layers of the strength of training, and the codes of layer 0."""
        return self._drawn(batch, self.config.train_gamma, key)

    def losses(self, params: Params, batch: Drawn, probe: Any) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Returns the losses of every image at every layer."""
        del probe
        noise = self.config.layer_noise
        perturb = layer_noise(jax.random.wrap_key_data(batch.keys), noise) if noise > 0.0 else None
        return self._losses(params, batch, perturb), {}

    def split_losses(self, params: Params, split: str, trial: Trial) -> np.ndarray:
        """Losses of every image of a split at every layer, (N, L + 1)."""
        losses = []
        for index, batch in enumerate(self.data.examples(split, batch_size=BATCH_SIZE)):
            key = jax.random.fold_in(jax.random.key(NOISE_SEED), index)
            losses.append(self._read(params, batch, *map(np.asarray, trial), key))
        return np.concatenate(losses)

    def validate(self, params: Params, multipliers: np.ndarray | None) -> Validation:
        """At the noises of training; codes that are no better than zeros have collapsed."""
        del multipliers
        config = self.config
        losses = self.split_losses(params, "validation", Trial(config.train_gamma, config.layer_noise))
        error = self._relative(losses, "validation")
        words = f"the model has collapsed (relative error {error:.2f}; of codes of zeros, 1)"
        return Validation(losses, {"relative_error": error}, collapse=words if error >= 1.0 else None)

    def evaluate(self, params: Params, folder: Path) -> tuple[Row, np.ndarray]:
        """Relative errors at every noise level, with disturbed layers, and of what needs no training."""
        del folder
        config, ista = self.config, self.ista()
        levels = {str(gamma): Trial(gamma) for gamma in config.noise_levels}
        gammas = {gamma: self.split_losses(params, "test", trial) for gamma, trial in levels.items()}
        floor_errors = {"ISTA": self.relative_errors(ista, levels), **floors(config, self.data)}
        at_training = gammas[str(float(config.train_gamma))]
        if config.layer_noise > 0.0:
            at_training = self.split_losses(params, "test", Trial(config.train_gamma, config.layer_noise))
        figures = {
            "method": config.method,
            **noise_figures(config),
            "layer_noise": config.layer_noise,
            "num_layers": self.num_layers,
            "seed": config.seed,
            "num_examples": len(at_training),
            "relative_error": {gamma: self._relative(losses, "test") for gamma, losses in gammas.items()},
            "validation_relative_error": self.relative_errors(params, levels, split="validation"),
            "floors": floor_errors,
            "floor_shares": dict.fromkeys(floor_errors, 1.0),
            **self.disturbed(params),
            **{f"ista_{name}": figures for name, figures in self.disturbed(ista).items()},
            "parameters": num_parameters(params),
        }
        return figures, at_training

    def disturbed(self, params: Params) -> Row:
        """Relative errors on the test split with noise on all layers, each layer lost in turn, and disturbed images."""
        gamma = self.config.train_gamma

        def score(noise: float, lost: int) -> float:
            return self._relative(self.split_losses(params, "test", Trial(gamma, noise, lost)), "test")

        def of_input(one: Disturbance) -> float:
            return self._relative(self.disturbed_losses(params, "test", one), "test")

        return {
            **disturbed_figures(self.config, self.num_layers, "relative_error", score),
            **disturbance_figures(self.config.test_disturbances, "relative_error", of_input),
        }

    def disturbed_losses(self, params: Params, split: str, one: Disturbance) -> np.ndarray:
        """Losses of every image of a split at every layer, (N, L + 1), at the noise of training and a disturbance."""
        losses = []
        for index, batch in enumerate(self.data.examples(split, batch_size=BATCH_SIZE)):
            key = jax.random.fold_in(jax.random.key(NOISE_SEED), index)
            losses.append(self._read_disturbed(one)(params, batch, key))
        return np.concatenate(losses)

    def relative_errors(self, params: Params, trials: Mapping[str, Trial], *, split: str = "test") -> dict[str, float]:
        """Returns the mean of |z_L - z*|^2 over that of |z*|^2 on a split, for each trial."""
        return {name: self._relative(self.split_losses(params, split, trial), split) for name, trial in trials.items()}

    def ista(self) -> Params:
        """Parameters with which layers are steps of ISTA."""
        return dict(self.model.clone(noise=None).init(jax.random.key(0), jnp.zeros((1, self.model.dim))))

    def data_fingerprint(self) -> Row:
        """Spread of the pixels, size of the codes, and how many images there are."""
        sizes = {split: self.data.num_examples(split) for split in SPLITS}
        return {"pixel_std": self.data.pixel_std, "square_norms": self.data.square_norms, "examples": sizes}

    def model_spec(self) -> Row:
        """The dictionary, the shape of images, and the spread of clean pixels, which noise is in units of."""
        data = self.data
        return {"shape": list(data.shape), "pixel_std": data.pixel_std, "dictionary": to_text(data.dictionary)}

    def predict(self, params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0) -> Any:
        """Returns the `Coded` of an image (a file, or a uint8 array); a list of them for a list.

        Args:
          params: of the model.
          inputs: an image or a list of them, which are brought to the size and the grey of the train images.
          gamma: strength of noise to add before, as in training.
          seed: of that noise.
        """
        check_noise(gamma, seed)
        several = isinstance(inputs, list | tuple)
        if several and not inputs:
            raise UserError("predict needs images, got an empty list; give one or more")
        given = inputs if several else [inputs]
        images = np.stack([to_grey(picture_of(one, self.data.shape)) for one in given])
        codes = np.zeros((len(images), self.model.num_atoms), np.float32)
        estimates = self._coded(params, CodeBatch(images, codes), np.float32(gamma), jax.random.key(seed))
        shown = np.clip(np.round(255.0 * estimates @ self.data.dictionary), 0, 255).astype(np.uint8)
        coded = [Coded(code, image.reshape(self.data.shape[:2])) for code, image in zip(estimates, shown, strict=True)]
        return coded if several else coded[0]

    def summary_line(self, evaluation: Row) -> str:
        """The relative error at the noise of training beside that of ISTA, and feasibility."""
        gamma = str(float(evaluation["train_gamma"]))
        error, ista = evaluation["relative_error"][gamma], evaluation["floors"]["ISTA"][gamma]
        return (
            f"relative error {error:.3f} against {ista:.3f} of ISTA at gamma {gamma}, {feasibility_words(evaluation)}"
        )

    def _drawn(self, batch: CodeBatch, gamma: Any, key: jax.Array, one: Disturbance | None = None) -> Drawn:
        of_images, of_start, of_layers = jax.random.split(key, 3)
        clean = jnp.asarray(batch.images, jnp.float32) / 255.0
        noise = gamma * self.data.pixel_std * jax.random.normal(of_images, clean.shape)
        signals = clean + noise if one is None else self._signals(clean, noise, one, jax.random.fold_in(of_images, 1))
        codes = jnp.asarray(batch.codes)
        start = self.config.model.start * jax.random.normal(of_start, codes.shape)
        keys = jax.random.key_data(jax.random.split(of_layers, len(codes)))
        return Drawn(signals, codes, start, keys)

    def _signals(self, clean: Array, noise: Array, one: Disturbance, key: jax.Array) -> Array:
        """Disturbed images as rows; of lost pixels each is drawn for by itself."""
        height, width, _ = self.data.shape

        def disturb(clean: Array, noise: Array, key: jax.Array) -> Array:
            lose = lambda image, *others: dropped(image.reshape(-1), *others).reshape(image.shape)  # noqa: E731
            picture, picture_noise = clean.reshape(height, width), noise.reshape(height, width)
            return disturbed(picture, picture_noise, one, key, lose=lose).reshape(-1)

        return jax.vmap(disturb)(clean, noise, jax.random.split(key, len(clean)))

    def _losses(self, params: Params, batch: Drawn, perturb: Perturbation | None) -> SampleLosses:
        record = lambda z: 0.5 * jnp.sum((keep_rows(z) - batch.codes) ** 2, axis=-1)  # noqa: E731
        start = keep_rows(batch.start)
        return self._apply(params, keep_rows(batch.signals), start, record=record, perturb=perturb).T

    def _tried(self, params: Params, batch: CodeBatch, gamma: Array, noise: Array, lost: Array, key: Array) -> Array:
        """Losses of every image at every layer under a `Trial`, whose numbers are traced: one program for all."""
        drawn = self._drawn(batch, gamma, key)
        noisy = layer_noise(jax.random.wrap_key_data(drawn.keys), noise)
        return self._losses(params, drawn, in_turn(lost_layer(lost), noisy))

    def _disturbed(self, one: Disturbance, params: Params, batch: CodeBatch, key: jax.Array) -> Array:
        """Losses of every image at every layer under a disturbance, which a program is compiled for."""
        return self._losses(params, self._drawn(batch, self.config.train_gamma, key, one), None)

    def _codes(self, params: Params, batch: CodeBatch, gamma: Array, key: jax.Array) -> Array:
        drawn = self._drawn(batch, gamma, key)
        return self._apply(params, drawn.signals, drawn.start)[-1]

    def _relative(self, losses: np.ndarray, split: str) -> float:
        """The mean of |z_L - z*|^2 over that of |z*|^2."""
        return float(2.0 * np.mean(losses[:, -1], dtype=np.float64) / self.data.square_norms[split])


def open_sparse_coding(config: SparseCodingConfig, log: Log) -> SparseCodingTask:
    """The task on the data of its configuration."""
    return SparseCodingTask(config, load(config.data, log=log))


def sparse_coding_of(config: SparseCodingConfig, facts: Row) -> SparseCodingTask:
    """The task that `SparseCodingTask.model_spec` describes, without its data."""
    height, width, channels = facts["shape"]
    dictionary = from_text(facts["dictionary"], width=height * width)
    return SparseCodingTask(config, CodeFacts((height, width, channels), dictionary, facts["pixel_std"]))
