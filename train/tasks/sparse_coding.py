"""Sparse coding: LISTA towards the Lasso's solutions, plain and under descent
constraints."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from unroll_jax.models import LISTA
from unroll_jax.perturbations import Perturbation, layer_noise

from ..config.sparse_coding import SparseCodingConfig
from ..data.codes import CodeBatch, CodeData, CodeSpec, load, solve_lasso, to_grey
from ..data.files import SPLITS
from ..data.pictures import picture_of
from ..sharding.mesh import keep_rows
from ..task import Log, Params, Row, SampleLosses
from .common import (
    NOISE_SEED,
    PerturbedTask,
    Reading,
    Trial,
    check_noise,
    feasibility_words,
    on_batches,
)
from .networks import each_of, loop_options, to_bytes

WEIGHT_NOISE = 0.01
# Ridge penalties that the linear map is chosen among, times the number of images.
PENALTIES = tuple(10.0**power for power in range(-6, 1))

# images (n, pixels) in [0, 1] -> codes (n, atoms)
Coder = Callable[[np.ndarray], np.ndarray]


class Drawn(NamedTuple):
    """Images with noise, the codes to reach, the codes of layer 0, and a key of
    layer noise, a row an image."""

    signals: Float[Array, "batch pixels"]
    codes: Float[Array, "batch atoms"]
    start: Float[Array, "batch atoms"]
    keys: UInt32[Array, "batch 2"]


class Coded(NamedTuple):
    """The code of an image, float32 (atoms,), and the image it reconstructs, uint8
    (height, width)."""

    code: np.ndarray
    image: np.ndarray


class SparseCodingTask(PerturbedTask[SparseCodingConfig]):
    """f_l is the mean over images of 1/2 |z_l - z*|^2, z* the Lasso's solution for the
    image without noise.

    Layer 0 is z_0: zeros, or noise. Scores are relative errors: the mean of |z_L -
    z*|^2 over the mean of |z*|^2.

    Source: Hadou, NaderiAlizadeh, Ribeiro, "Robust stochastically-descending unrolled
    networks" (2023), whose constraints are on the distance |z_l - z*|.
    """

    score, spec_type, score_batch = "relative_error", CodeSpec, 1000

    @staticmethod
    def _load(config: SparseCodingConfig, log: Log) -> CodeData:
        return load(config.data, log=log)

    def __init__(
        self,
        config: SparseCodingConfig,
        data: CodeData | Any,
        spec: CodeSpec | None = None,
    ):
        model = config.model
        super().__init__(config, data, spec)
        self.num_layers = model.num_layers
        atoms, pixels = self.spec.dictionary.shape
        self.model = LISTA(
            pixels,
            atoms,
            model.num_layers,
            sparsity=config.data.sparsity,
            dictionary_init=jax.nn.initializers.constant(self.spec.dictionary),
            noise=None if model.weights == "ista" else WEIGHT_NOISE,
            **loop_options(config),
        )
        self.training = self.train_on(
            None if data is None else data.num_examples("train"), examples="images"
        )
        self._apply: Callable[..., Any] = self.model.apply
        self._coded = on_batches(self._codes)

    def init(self, key: jax.Array) -> Params:
        """Returns the weights of ISTA, for any key, or noise."""
        return dict(self.model.init(key, jnp.zeros((1, self.model.dim))))

    def losses(
        self, params: Params, batch: Drawn, probe: Any
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Returns the losses of every image at every layer."""
        noise = self.config.layer_noise
        perturb = (
            layer_noise(jax.random.wrap_key_data(batch.keys), noise)
            if noise > 0.0
            else None
        )
        return self._losses(params, batch, perturb), {}

    @property
    def training_trial(self) -> Trial:
        """The noises of training, on images and on layers."""
        return Trial(float(self.config.train_gamma), self.config.layer_noise)

    def score_of(self, reading: Reading, split: str) -> float:
        """Returns the relative error of the last layer."""
        return float(
            2.0
            * np.mean(reading.losses[:, -1], dtype=np.float64)
            / self.data.square_norms[split]
        )

    def row_of(self, reading: Reading) -> Row:
        """Returns the relative error."""
        return {"relative_error": self.score_of(reading, "validation")}

    def further_figures(self, params: Params, readings: Mapping[Trial, Reading]) -> Row:
        """Returns errors of coders without training."""
        trials, ista = self.trials(), self.ista()
        of_ista = self.scores(self.readings(ista, "test", trials), trials)
        floor_errors = {
            "ISTA": of_ista.pop(self.score),
            **floors(self.config, self.data),
        }
        return {
            "layer_noise": self.config.layer_noise,
            "floors": floor_errors,
            "floor_shares": dict.fromkeys(floor_errors, 1.0),
            **{f"ista_{name}": errors for name, errors in of_ista.items()},
        }

    def ista(self) -> Params:
        """Returns parameters with which layers are steps of ISTA."""
        return dict(
            self.model.clone(noise=None).init(
                jax.random.key(0), jnp.zeros((1, self.model.dim))
            )
        )

    def data_fingerprint(self) -> Row:
        """Returns the deviation of pixels, the size of codes, and sizes of the
        splits."""
        sizes = {split: self.data.num_examples(split) for split in SPLITS}
        return {
            "pixel_std": self.spec.pixel_std,
            "square_norms": self.data.square_norms,
            "examples": sizes,
        }

    def predict(
        self, params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0
    ) -> Any:
        """Returns the `Coded` of an image (a file, or a uint8 array); a list of them
        for a list. Images are converted to the size of the train images and to grey.
        Noise of a strength ``gamma`` may be added.
        """
        check_noise(gamma, seed)
        pictures, several = each_of(inputs)
        images = [to_grey(picture_of(one, self.spec.shape)) for one in pictures]
        codes = np.zeros((len(images), self.model.num_atoms), np.float32)
        estimates = self._coded(
            params,
            CodeBatch(np.stack(images), codes),
            np.float32(gamma),
            jax.random.key(seed),
        )
        shown = to_bytes(estimates @ self.spec.dictionary)
        coded = [
            Coded(code, image.reshape(self.spec.shape[:2]))
            for code, image in zip(estimates, shown, strict=True)
        ]
        return coded if several else coded[0]

    def summary_line(self, evaluation: Row) -> str:
        """Relative errors at the noise of training of the model and of ISTA, and
        feasibility."""
        gamma = str(float(evaluation["train_gamma"]))
        error, ista = (
            evaluation["relative_error"][gamma],
            evaluation["floors"]["ISTA"][gamma],
        )
        return (
            f"relative error {error:.3f} against {ista:.3f} of ISTA at gamma {gamma},"
            f" {feasibility_words(evaluation)}"
        )

    def _drawn(self, batch: CodeBatch, gamma: Any, key: jax.Array) -> Drawn:
        """Draws noise on images and layers, and the codes of layer 0."""
        of_images, of_start, of_layers = jax.random.split(key, 3)
        clean = jnp.asarray(batch.images, jnp.float32) / 255.0
        signals = clean + gamma * self.spec.pixel_std * jax.random.normal(
            of_images, clean.shape
        )
        codes = jnp.asarray(batch.codes)
        start = self.config.model.start * jax.random.normal(of_start, codes.shape)
        keys = jax.random.key_data(jax.random.split(of_layers, len(codes)))
        return Drawn(signals, codes, start, keys)

    def _losses(
        self, params: Params, batch: Drawn, perturb: Perturbation | None
    ) -> SampleLosses:
        def record(z: Array) -> Array:
            return 0.5 * jnp.sum((keep_rows(z) - batch.codes) ** 2, axis=-1)

        start = keep_rows(batch.start)
        return self._apply(
            params, keep_rows(batch.signals), start, record=record, perturb=perturb
        ).T

    def _codes(
        self, params: Params, batch: CodeBatch, gamma: Array, key: jax.Array
    ) -> Array:
        drawn = self._drawn(batch, gamma, key)
        return self._apply(params, drawn.signals, drawn.start)[-1]


def floors(config: SparseCodingConfig, data: CodeData) -> dict[str, dict[str, float]]:
    """Relative errors on the test split at every noise level of coders that cost no
    more than the network, by name. FISTA takes as many steps as there are layers; the
    linear map is fitted by least squares at the noise of training, with the ridge
    penalty that is best on the validation split. Codes of zeros have the error 1.
    """
    coders: dict[str, Coder] = {
        "FISTA": lambda images: solve_lasso(
            images, data.dictionary, config.data.sparsity, config.model.num_layers
        )[0],
        "linear map": linear_coder(data, config.train_gamma),
    }
    return {
        name: {
            str(gamma): error(coder, data, "test", gamma)
            for gamma in config.noise_levels
        }
        for name, coder in coders.items()
    }


def linear_coder(data: CodeData, gamma: float) -> Coder:
    """The affine map of images to codes with the least squares at a noise level, and
    a penalty chosen on validation."""
    # takes a second, and is needed only to evaluate
    from sklearn.linear_model import Ridge

    images, codes = noisy(data, "train", gamma)
    models = [Ridge(penalty * len(images)).fit(images, codes) for penalty in PENALTIES]
    return min(
        (model.predict for model in models),
        key=lambda coder: error(coder, data, "validation", gamma),
    )


def error(coder: Coder, data: CodeData, split: str, gamma: float) -> float:
    """The mean of |z - z*|^2 over the mean of |z*|^2, at a noise level."""
    images, codes = noisy(data, split, gamma)
    return float(
        np.sum((coder(images) - codes) ** 2, dtype=np.float64)
        / np.sum(codes**2, dtype=np.float64)
    )


def noisy(data: CodeData, split: str, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Images of a split in [0, 1] with noise, the same at every call, and their
    codes."""
    whole = data.whole(split)
    clean = np.float32(whole.images) / np.float32(255.0)
    noise: Any = np.random.default_rng(NOISE_SEED).standard_normal(
        clean.shape, np.float32
    )
    return clean + np.float32(gamma * data.pixel_std) * noise, whole.codes
