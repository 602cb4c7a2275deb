"""Denoising of sets of images: the unrolled transformer, whose tokens are images
that attend to each other."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8, UInt32

from unroll_jax.models import cosine_bases

from ..config.image_sets import BOUNDS, INPUT_LOSS, ImageSetConfig
from ..data.files import SPLITS
from ..data.image_sets import SetData, SetSpec, load
from ..data.pictures import picture_of
from ..sharding.mesh import keep_rows
from ..task import Log, Params, Row, SampleLosses
from .common import (
    PerturbedTask,
    Reading,
    Trial,
    add_noise,
    check_noise,
    feasibility_words,
    keyed,
    on_batches,
    to_unit,
)
from .floors import LINEAR, ClassGaussians, fit_linear
from .networks import (
    check_reference,
    each_of,
    loop_options,
    to_bytes,
    unrolled_transformer,
)

MEAN, MIXTURE = "mean of the set", "Gaussian of each class"
# of the Gaussians' variances, of pixels in [0, 1]; chosen on validation
RIDGES = (1e-4, 1e-3, 3e-3, 1e-2)

Sets = Float[Array, "batch tokens pixels"]


class Noisy(NamedTuple):
    """Sets of images in [0, 1], the same with noise, and a key of layer noise for
    each."""

    clean: Sets
    noisy: Sets
    keys: UInt32[Array, "batch 2"]


def in_proportion(config: ImageSetConfig, spec: SetSpec) -> ImageSetConfig:
    """Returns the configuration with default bounds, which are of digits, in
    proportion to the input's loss."""
    given, loss = (
        config.constraints,
        0.5 * spec.size**2 * config.train_gamma * spec.pixel_std,
    )
    share = loss / INPUT_LOSS
    is_default = (given.reference, given.floor) == (BOUNDS.reference, BOUNDS.floor)
    if not is_default or share == 0.0 or abs(share - 1.0) < 0.01:
        return config
    reference, floor = (
        None if bound is None else share * bound
        for bound in (BOUNDS.reference, BOUNDS.floor)
    )
    return dataclasses.replace(
        config, constraints=dataclasses.replace(given, reference=reference, floor=floor)
    )


class ImageSetTask(PerturbedTask[ImageSetConfig]):
    """f_l is the mean over sets and images of 1/2 |x_t - Phi_l,t|^2, pixels in [0, 1];
    layer 0 is the noisy input.

    Source: the model of Porras-Valenzuela, Hadou, Ribeiro, eqs. 47 and 48.
    """

    score, spec_type = "half_squared_error", SetSpec

    @staticmethod
    def _load(config: ImageSetConfig, log: Log) -> SetData:
        data = load(config.data, log=log)
        given, scaled = config.constraints, in_proportion(config, data.spec).constraints
        if scaled != given:
            words = (
                f"--constraints.reference {scaled.reference:.4g} and"
                f" --constraints.floor {scaled.floor:.4g}"
            )
            log(
                "the bounds for digits, in proportion to the loss of these images:"
                f" {words}"
            )
        return data

    def __init__(
        self, config: ImageSetConfig, data: SetData | Any, spec: SetSpec | None = None
    ):
        super().__init__(config, data, spec)
        self._config = config = in_proportion(config, self.spec)
        model, pixels = config.model, self.spec.size**2
        self.num_layers, self._variance = (
            model.num_layers,
            config.train_gamma * self.spec.pixel_std,
        )
        check_reference(config, 0.5 * pixels * self._variance)
        self.model = unrolled_transformer(
            model,
            pixels,
            param_dtype=jnp.promote_types(model.dtype, jnp.float32),
            self_loops=model.self_loops,
            **loop_options(config),
        )
        turned = config.primal.basis == "cosine" and config.primal.name != "muon"
        # None, as sets are drawn without end.
        self.training = self.train_on(
            None, bases=cosine_bases(pixels) if turned else None
        )
        self._clean = on_batches(
            lambda params, *noise: self.model.apply(params, self._drawn(*noise).noisy)[
                -1
            ]
        )

    def with_config(self, config: ImageSetConfig) -> Self:
        """As of every such task."""
        return super().with_config(in_proportion(config, self.spec))

    def init(self, key: jax.Array) -> Params:
        """Returns the initial weights, the same for every key."""
        return dict(self.model.init(key, jnp.zeros((1, 1, self.model.dim))))

    def losses(
        self, params: Params, batch: Noisy, probe: Any
    ) -> tuple[SampleLosses, Mapping[str, Array]]:
        """Returns the losses of every set at every layer."""
        return self._losses(params, batch, None), {}

    def further_figures(self, params: Params, readings: Mapping[Trial, Reading]) -> Row:
        """Returns the loss of inputs, and of denoisers without a network."""
        cases = self.trials()[self.score].items()
        inputs = {
            label: float(np.mean(readings[trial].losses[:, 0], dtype=np.float64))
            for label, trial in cases
        }
        return {
            f"noisy_{self.score}": inputs,
            "floors": floors(self.data, self._variance, self._variances()),
        }

    def data_fingerprint(self) -> Row:
        """Returns the deviation of pixels, and sizes of the splits."""
        images = {split: self.data.num_images(split) for split in SPLITS}
        return {
            "pixel_std": self.spec.pixel_std,
            "class_names": list(self.spec.class_names),
            "images": images,
        }

    def predict(
        self, params: Params, inputs: Any, *, gamma: float = 0.0, seed: int = 0
    ) -> np.ndarray:
        """Returns a set of images without its noise: uint8 (images, size, size), for a
        list of files or uint8 arrays. Images are converted to the size of the train
        images and to grey. Noise of a strength ``gamma`` may be added.
        """
        check_noise(gamma, seed)
        size = self.spec.size
        pictures = np.stack(
            [picture_of(one, (size, size, 1)).reshape(-1) for one in each_of(inputs)[0]]
        )
        clean = self._clean(params, pictures[None], gamma, jax.random.key(seed))[0]
        return to_bytes(clean).reshape(-1, size, size)

    def summary_line(self, evaluation: Row) -> str:
        """Loss at the noise of training, of the input and of the linear layer, and
        feasibility."""
        gamma = str(float(evaluation["train_gamma"]))
        error, noisy = (
            evaluation[self.score][gamma],
            evaluation[f"noisy_{self.score}"][gamma],
        )
        others = (
            f"{noisy:.3f} of its input and {evaluation['floors'][LINEAR][gamma]:.3f} of"
            " one linear layer"
        )
        return (
            f"half squared error {error:.3f} against {others} at gamma {gamma},"
            f" {feasibility_words(evaluation)}"
        )

    def _variances(self) -> tuple[tuple[str, float], ...]:
        return tuple(
            (str(gamma), gamma * self.spec.pixel_std)
            for gamma in self.config.noise_levels
        )

    def _drawn(
        self, batch: UInt8[Array, "batch tokens pixels"], gamma: Any, key: jax.Array
    ) -> Noisy:
        of_images, of_layers = jax.random.split(key)
        clean = to_unit(batch, jnp.promote_types(self.config.model.dtype, jnp.float32))
        keys = jax.random.key_data(jax.random.split(of_layers, len(batch)))
        return Noisy(
            clean, add_noise(clean, gamma * self.spec.pixel_std, of_images), keys
        )

    def _losses(self, params: Params, batch: Noisy, perturb: Any) -> SampleLosses:
        def record(y: Array) -> Array:
            return 0.5 * jnp.mean(
                jnp.sum((keep_rows(y) - batch.clean) ** 2, axis=-1), axis=-1
            )

        return self.model.apply(
            params, keep_rows(batch.noisy), record=record, perturb=perturb
        ).T


@functools.lru_cache(maxsize=1)  # the runs of one command are judged by the same
def floors(
    data: SetData, trained: float, tested: tuple[tuple[str, float], ...]
) -> dict[str, dict[str, float]]:
    """Half squared errors on the test split, under noise of the variances ``tested``,
    without a network. The linear layer is fitted for the variance ``trained``; the
    mixture of Gaussians knows the variance of each test.
    """
    layer = fit_linear(
        data.examples("train", batch_size=PerturbedTask.score_batch), trained
    )
    classes = [images / 255.0 for images in data.by_class("train")]
    mixtures = [ClassGaussians.fit(classes, ridge) for ridge in RIDGES]

    def of_images(mixture):
        return lambda noisy, s: mixture(noisy.reshape(-1, noisy.shape[-1]), s).reshape(
            noisy.shape
        )

    mixture = min(
        map(of_images, mixtures),
        key=lambda one: _error(one, data, "validation", trained),
    )
    denoisers: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
        LINEAR: lambda noisy, _: np.asarray(layer(jnp.asarray(noisy))),
        MEAN: lambda noisy, _: noisy.mean(axis=1, keepdims=True),
        MIXTURE: mixture,
    }
    return {
        name: {label: _error(one, data, "test", variance) for label, variance in tested}
        for name, one in denoisers.items()
    }


def _error(
    denoise: Callable[[np.ndarray, float], np.ndarray],
    data: SetData,
    split: str,
    variance: float,
) -> float:
    """Half the squared error of an image, under the noise of the networks'
    evaluation."""
    errors = []
    for batch, key in keyed(data.examples(split, batch_size=PerturbedTask.score_batch)):
        clean = to_unit(batch)
        noisy = np.asarray(add_noise(clean, variance, jax.random.split(key)[0]))
        errors.append(
            0.5
            * np.sum(
                (denoise(noisy, variance) - np.asarray(clean)) ** 2, axis=-1
            ).reshape(-1)
        )
    return float(np.mean(np.concatenate(errors), dtype=np.float64))
